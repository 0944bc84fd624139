import itertools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from strategies import generator

from mnagt.errors import InputError
from mnagt.tasks import (
    END,
    NO_CLASS,
    TASKS,
    UNKNOWN,
    CensoredRegression,
    EdgeRegression,
    Evidential,
    MeanVariance,
    Mixed,
    MultiLabel,
    NodeRegression,
    QuantileRegression,
    Regression,
    SingleLabel,
    SubTokens,
    Task,
    task_from_dict,
    task_to_dict,
    word_keys,
)
from mnagt.tasks.guess import guess_kind
from mnagt.tasks.target_column import TargetColumn

GRAPHS, NAMES = 7, ("a", "b", "c")
NAN = float("nan")
SEQUENCES = ["get user", "set user name", "set", "set set", "get name of it", "is user", "get name"]
WORDS, KEYS = word_keys([sequence.split() for sequence in SEQUENCES])


def cases() -> dict[str, tuple[Task, torch.Tensor]]:
    """Every task with targets of its kind; some are missing where they may be."""
    yes_or_no = (torch.rand(GRAPHS, 3, generator=generator(0)) < 0.5).float()
    number = torch.randn(GRAPHS, 3, generator=generator(0)) * torch.tensor([1.0, 10.0, 100.0]) + 5
    yes_or_no[0, 1] = number[0, 1] = NAN
    return {
        "single-label": (SingleLabel(NAMES), torch.arange(GRAPHS) % 3),
        "multi-label": (MultiLabel(NAMES), yes_or_no),
        "regression": (Regression(NAMES), number),
        "censored-regression": (CensoredRegression(NAMES), torch.cat([number, number.sign() * (number > 9)], dim=1)),
        "node-regression": (NodeRegression(NAMES), number),
        "edge-regression": (EdgeRegression(NAMES), number),
        "mean-variance": (MeanVariance(NAMES), number),
        "quantile": (QuantileRegression(NAMES), number),
        "evidential": (Evidential(NAMES), number),
        "mixed": (
            Mixed(NAMES, (MultiLabel(("a",)), SingleLabel(NAMES), Regression(("c",)))),
            torch.stack([yes_or_no[:, 1], torch.arange(GRAPHS) % 3, number[:, 1]], dim=1),
        ),
        "sub-tokens": (SubTokens(WORDS, most_words=3, positions=2), KEYS),
    }


def outputs(seed: int = 1, columns: int = 3) -> torch.Tensor:
    return torch.randn(GRAPHS, columns, generator=generator(seed))


ASKED = [kind for kind in TASKS if kind != "no targets"]


@pytest.mark.parametrize("kind", ASKED)
def test_a_task_scores_and_decodes_whatever_a_model_says(kind):
    task, target = cases()[kind]
    task = task.fit(target)
    output = outputs(columns=task.num_outputs)
    scores, table = task.scores(output, target), task.decode(output)
    assert task.kind == kind
    assert task.metric in scores
    assert all(math.isfinite(score) for score in scores.values())
    assert all(len(column) == GRAPHS for column in table.values())


@pytest.mark.parametrize("kind", ASKED)
def test_a_loss_is_finite_and_so_are_its_gradients(kind):
    task, target = cases()[kind]
    task = task.fit(target)
    output = outputs(columns=task.num_outputs).requires_grad_()
    loss = task.loss(output, target)
    (grad,) = torch.autograd.grad(loss, output)
    assert loss.shape == ()
    assert bool(grad.isfinite().all())
    assert bool(grad.any())


@pytest.mark.parametrize("kind", ASKED)
def test_a_task_survives_a_file(kind):
    task, target = cases()[kind]
    fitted = task.fit(target)
    assert task_from_dict(json.loads(json.dumps(task_to_dict(fitted)))) == fitted


@pytest.mark.parametrize(
    ("content", "message"),
    [({"kind": "ranking"}, "no task 'ranking'"), ({"kind": "multi-label", "colour": 1}, "another version")],
)
def test_a_task_from_elsewhere_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        task_from_dict(content)


@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_missing_targets_neither_pull_nor_count(kind):
    task, target = cases()[kind]
    task, is_known, output = task.fit(target), target.isfinite(), outputs().requires_grad_()
    loss = task.loss(output, target)
    (grad,) = torch.autograd.grad(loss, output)
    assert grad[~is_known].tolist() == [0.0]
    other = torch.where(is_known, output, torch.tensor(99.0))
    torch.testing.assert_close(task.loss(other, target), loss)
    assert task.scores(other.detach(), target) == task.scores(output.detach(), target)


@pytest.mark.parametrize("kind", ASKED)
def test_graphs_that_fill_a_batch_up_neither_pull_nor_count(kind):
    """As ``mnagt.data.padded_batches`` marks them."""
    task, target = cases()[kind]
    task = task.fit(target)
    output = outputs(columns=task.num_outputs).requires_grad_()
    marked = torch.cat([target, torch.full_like(target[:3], NAN if target.is_floating_point() else NO_CLASS)])
    loss = task.loss(torch.cat([output, output[:3] * 7]), marked)
    torch.testing.assert_close(loss, task.loss(output, target))
    (grad,) = torch.autograd.grad(loss, output)
    torch.testing.assert_close(grad, torch.autograd.grad(task.loss(output, target), output)[0])


@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_a_batch_without_any_target_costs_nothing(kind):
    task, target = cases()[kind]
    assert task.fit(target).loss(outputs(), torch.full_like(target, NAN)) == 0


@pytest.mark.parametrize("kind", ASKED)
def test_nothing_is_worse_than_a_score_and_not_a_number_is_next(kind):
    task, _ = cases()[kind]
    better, worse = (0.9, 0.1) if task.higher_is_better else (0.1, 0.9)
    assert task.is_better(better, worse)
    assert not task.is_better(worse, better)
    assert not task.is_better(better, better)
    assert task.is_better(NAN, None)
    assert task.is_better(worse, NAN)
    assert not task.is_better(NAN, worse)


def test_multi_label_loss_is_cross_entropy_over_what_is_labelled():
    task, target = cases()["multi-label"]
    is_known = target.isfinite()
    expected = F.binary_cross_entropy_with_logits(outputs()[is_known], target[is_known])
    torch.testing.assert_close(task.loss(outputs(), target), expected)


def test_multi_label_scores_are_means_over_questions_with_both_answers():
    task, target = cases()["multi-label"]
    target[:, 2] = 1.0
    known = [(target[1:, 0], outputs()[1:, 0]), (target[1:, 1], outputs()[1:, 1])]
    target[0, 0] = NAN
    scores = task.scores(outputs(), target)
    assert scores["ap"] == pytest.approx(sum(average_precision_score(t, o) for t, o in known) / 2)
    assert scores["rocauc"] == pytest.approx(sum(roc_auc_score(t, o) for t, o in known) / 2)


def test_the_metric_of_questions_may_be_chosen():
    assert MultiLabel(("a",), "rocauc").metric == "rocauc"
    with pytest.raises(InputError, match=r"metric must be one of ap, brier, .* got 'rmse'"):
        MultiLabel(("a",), "rmse")


def test_questions_written_before_there_was_a_choice_are_scored_as_they_were():
    assert task_from_dict({"kind": "multi-label", "names": ["a"]}) == MultiLabel(("a",), "ap")


def test_multi_label_without_both_answers_anywhere_has_no_score():
    assert math.isnan(MultiLabel(("a",)).scores(torch.zeros(3, 1), torch.ones(3, 1))["ap"])


def test_regression_learns_standardised_and_answers_in_its_own_units():
    task, target = cases()["regression"]
    fitted = task.fit(target)
    assert isinstance(fitted, Regression)
    mean, std = torch.tensor(fitted.mean), torch.tensor(fitted.std)
    perfect = ((target - mean) / std).nan_to_num()
    assert fitted.loss(perfect, target) == pytest.approx(0, abs=1e-10)
    assert fitted.scores(perfect, target)["mae"] == pytest.approx(0, abs=1e-4)
    assert fitted.decode(perfect)["c"] == pytest.approx(target[:, 2].tolist(), rel=1e-4)
    standardised = perfect[:, 2]
    assert standardised.mean() == pytest.approx(0, abs=1e-5)
    assert standardised.std(correction=0) == pytest.approx(1, abs=1e-5)


def test_regression_scores_are_errors_in_its_own_units():
    task = Regression(("a", "b"), mean=(1.0, 2.0), std=(10.0, 100.0))
    output, target = torch.tensor([[0.5, 0.5]]), torch.tensor([[9.0, NAN]])
    expected = {"rmse": 3.0, "mae": 3.0, "r2": NAN, "spearman": NAN}
    assert task.scores(output, target) == pytest.approx(expected, nan_ok=True)


def test_a_constant_target_keeps_its_scale():
    assert Regression(("a",)).fit(torch.full((7, 1), 0.1)).std == (1.0,)


def test_a_target_never_seen_in_training_is_named():
    with pytest.raises(InputError, match="target 'b' has no value"):
        Regression(("a", "b")).fit(torch.tensor([[1.0, NAN], [2.0, NAN]]))


def test_single_label_loss_is_cross_entropy():
    task, target = cases()["single-label"]
    torch.testing.assert_close(task.loss(outputs(), target), F.cross_entropy(outputs(), target))


def test_single_label_answers_with_the_likeliest_class():
    table = SingleLabel(("no", "yes")).decode(torch.tensor([[0.0, math.log(3)], [5.0, 0.0]]))
    assert table["prediction"] == ["yes", "no"]
    assert table["p(yes)"][0] == pytest.approx(0.75)


def test_multi_label_answers_with_probabilities():
    table = MultiLabel(("toxic",)).decode(torch.tensor([[0.0], [math.log(3)]]))
    assert table == {"p(toxic)": pytest.approx([0.5, 0.75])}


def test_one_class_is_no_classification():
    with pytest.raises(InputError, match="at least 2 classes"):
        SingleLabel(("only",))


def sub_tokens() -> SubTokens:
    task = SubTokens(WORDS, most_words=3, positions=2).fit(KEYS)
    assert isinstance(task, SubTokens)
    return task


def said(*sequences: str) -> torch.Tensor:
    """Outputs of a model that is sure of these words, at each position."""
    classes = [*sub_tokens().words, UNKNOWN, END]
    choice = torch.tensor([[classes.index(word) for word in sequence.split()] for sequence in sequences])
    return torch.nn.functional.one_hot(choice, len(classes)).float().flatten(1) * 9


def test_the_commonest_words_can_be_said_and_of_equals_the_first():
    assert SubTokens(WORDS, most_words=99).fit(KEYS).words == ("set", "get", "user", "name", "of", "it", "is")
    assert sub_tokens().words == ("set", "get", "user")
    assert sub_tokens().num_outputs == 2 * (3 + 2)


def test_words_of_the_validation_part_are_not_learned():
    assert SubTokens(WORDS).fit(KEYS[:1]).words == ("get", "user")


def test_each_position_is_a_choice_among_words_unknown_and_end():
    """'set user name' has more words than positions, 'is' is not common enough, 'set' ends early."""
    expected = {0: "get user", 1: "set user", 2: f"set {END}", 5: f"{UNKNOWN} user"}
    for graph, sequence in expected.items():
        assert sub_tokens().loss(said(sequence), KEYS[[graph]]) < 1e-2
    random = outputs(columns=sub_tokens().num_outputs)
    classes = torch.tensor([[1, 2], [0, 2], [0, 4], [0, 0], [1, 3], [3, 2], [1, 3]])
    each = [F.cross_entropy(random[:, 5 * i : 5 * i + 5], classes[:, i]) for i in range(2)]
    torch.testing.assert_close(sub_tokens().loss(random, KEYS), (each[0] + each[1]) / 2)


def test_a_short_target_ends_before_the_last_position():
    words, keys = word_keys([["get"], ["set"]])
    task = SubTokens(words, positions=3).fit(keys)
    output = torch.zeros(2, task.num_outputs)
    assert task.loss(output, keys).item() == pytest.approx(math.log(4))


def test_what_is_said_ends_at_the_first_end():
    table = sub_tokens().decode(said("get user", f"set {END}", f"{END} user", f"{UNKNOWN} get"))
    assert table["prediction"] == ["get user", "set", "", f"{UNKNOWN} get"]
    sure = math.exp(9) / (math.exp(9) + 4)
    assert table["p"] == pytest.approx([sure**2, sure**2, sure, sure**2])


def test_every_true_word_counts_and_unknown_is_none_of_them():
    scores = sub_tokens().scores(
        said("get user", "set user", f"{UNKNOWN} user", f"{END} get", "set set"), KEYS[[0, 1, 5, 2, 3]]
    )
    f1 = [1, 2 * (2 / 3) / (1 + 2 / 3), 0.5, 0, 1]
    assert scores["f1"] == pytest.approx(sum(f1) / 5)
    assert scores["recall"] == pytest.approx((1 + 2 / 3 + 1 / 2 + 0 + 1) / 5)
    assert scores["precision"] == pytest.approx((1 + 1 + 1 / 2 + 0 + 1) / 5)


def test_suggestions_are_the_likeliest_of_all_sequences():
    task = SubTokens(WORDS, most_words=4, positions=3).fit(KEYS)
    output = torch.randn(5, task.num_outputs, generator=generator(0)).double() * 2
    p = output.view(5, 3, 6).softmax(dim=2)
    for graph, suggestions in enumerate(task.suggest(output, 7)):
        every = {}
        for length in (1, 2, 3):
            for words in itertools.product(range(4), repeat=length):
                classes = [*words, 5][:3]
                every[tuple(task.words[i] for i in words)] = math.prod(
                    p[graph, at, i].item() for at, i in enumerate(classes)
                )
        best = sorted(every, key=every.__getitem__, reverse=True)[:7]
        assert [suggestion.words for suggestion in suggestions] == best
        assert [suggestion.probability for suggestion in suggestions] == pytest.approx([every[w] for w in best])


def test_words_without_any_are_refused():
    with pytest.raises(InputError, match="needs a vocabulary"):
        SubTokens(())


def test_what_is_kept_of_outputs_has_the_same_scores():
    output = torch.randn(len(KEYS), sub_tokens().num_outputs, generator=generator(0))
    kept = sub_tokens().reduce_output(output)
    assert kept.shape == (len(KEYS), 2)
    assert sub_tokens().scores(kept, KEYS) == sub_tokens().scores(output, KEYS)


def test_a_class_is_positive_unless_its_name_denies_the_other():
    output, target = torch.randn(30, 2, generator=generator(3)), torch.arange(30) % 3 // 2
    names = [("0", "1"), ("inactive", "active"), ("no", "yes"), ("Non-toxic", "toxic"), ("active", "Inactive")]
    assert [SingleLabel(each).positive_class for each in names] == [1, 1, 1, 1, 0]
    one, other = SingleLabel(names[1]), SingleLabel(names[4])
    assert one.scores(output, target) == pytest.approx(other.scores(output.flip(1), 1 - target))


def test_numbers_with_a_unit_are_named_with_their_line():
    column = TargetColumn("inhibition", ["63.4%", "", "5 %", "1e-3%", "7,5%"], "my.csv", "line {}".format)
    with pytest.raises(InputError, match=r"'63\.4%' is a number and a unit; leave '%' out of the column"):
        guess_kind([column])
    column = TargetColumn("found", ["1-propanol", "2-butanol", "3 C", "4 D"], "my.csv", "line {}".format)
    with pytest.raises(InputError, match="too many for classes"):
        guess_kind([column])
