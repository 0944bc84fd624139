"""The service keeps to the schema that it gives out: schemathesis makes requests from it, good and bad."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from serve.conftest import running

schemathesis = pytest.importorskip("schemathesis")

OPERATIONS = (
    *(
        (f"/v2/models/{{name}}{version}{end}", "POST" if end == "/infer" else "GET")
        for version in ("", "/versions/{version}")
        for end in ("/infer", "/ready", "")
    ),
    ("/v2", "GET"),
    ("/v2/health/live", "GET"),
    ("/v2/health/ready", "GET"),
    ("/predict", "POST"),
    ("/explain", "POST"),
    ("/model", "GET"),
    ("/models/{name}/predict", "POST"),
    ("/models/{name}/explain", "POST"),
    ("/models/{name}/model", "GET"),
    ("/models/{name}/versions/{version}/predict", "POST"),
    ("/models/{name}/versions/{version}/explain", "POST"),
    ("/models/{name}/versions/{version}/model", "GET"),
    ("/models", "GET"),
    ("/health", "GET"),
    ("/livez", "GET"),
    ("/readyz", "GET"),
    ("/metrics", "GET"),
)


UNHURRIED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


@pytest.fixture(scope="module", params=["molecules", "plain"])
def schema(request) -> Iterator:
    with running(request.getfixturevalue(request.param)) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_these_are_all_operations(schema):
    found = {(each.ok().path, each.ok().method.upper()) for each in schema.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [(*each, "POSITIVE") for each in OPERATIONS] + [(*each, "NEGATIVE") for each in OPERATIONS if each[1] == "POST"],
)
def test_answers_keep_to_the_schema(schema, path, method, mode):
    """Statuses, types and bodies as it says, none of the 500s, and bad requests are refused.

    That a good one is accepted cannot be asked for: a schema cannot tell what is a molecule.
    """
    cases = schema[path][method].as_strategy(generation_mode=schemathesis.GenerationMode[mode])

    @settings(max_examples=25 if method == "POST" else 2, deadline=None, suppress_health_check=UNHURRIED)
    @given(case=cases)
    def ask(case) -> None:
        case.call_and_validate(excluded_checks=[schemathesis.checks.positive_data_acceptance])

    ask()
