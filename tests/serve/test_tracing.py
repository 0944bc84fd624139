"""A span for each prediction, below its caller's, and one for each batch, with links to its requests."""

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def test_requests_and_batches_have_spans(spans, start, molecules):
    at = start(molecules)
    asked = {"json": {"smiles": ["C"]}, "headers": {"traceparent": CALLER}, "timeout": 60}
    assert httpx.post(f"{at}/predict", **asked).status_code == 200
    assert httpx.post(f"{at}/predict", json={"smiles": ["secret"]}, timeout=60).status_code == 422
    assert httpx.get(f"{at}/health").status_code == 200
    batch, request, refused = spans.get_finished_spans()
    assert request.name == refused.name == "POST /predict"
    assert f"{request.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{request.parent.span_id:016x}" == CALLER.split("-")[2]
    assert [each.attributes["http.response.status_code"] for each in (request, refused)] == [200, 422]
    assert (batch.name, dict(batch.attributes)) == ("batch", {"mnagt.model": "mnagt/1", "mnagt.requests": 1})
    assert [link.context.span_id for link in batch.links] == [request.context.span_id]
    assert "secret" not in f"{[each.to_json() for each in spans.get_finished_spans()]}"
