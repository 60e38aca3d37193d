"""Plans of tensor parallelism: what is found in a model, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from shoal.core.errors import InvalidSpec, UsageError  # noqa: E402
from shoal.sdk.parallel.tensor_plan import make_plan  # noqa: E402

pytestmark = pytest.mark.torch


class Tagged(nn.Sequential):
    """A chain whose forward may do anything between its modules."""


def test_an_elementwise_chain_is_a_pair_and_needs_one_exchange() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4))
    assert make_plan(model, 2) == {"0": "column", "3": "row"}


def test_a_chain_with_more_than_elementwise_functions_is_no_pair() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    assert make_plan(model, 2) == {"0": "gather", "2": "gather"}


def test_a_class_of_the_scripts_own_is_not_trusted_to_be_a_chain() -> None:
    assert make_plan(Tagged(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), 2) == {"0": "gather", "2": "gather"}


def test_a_transformer_layer_divides_its_mlp() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert make_plan(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 2) == {
        f"layers.{number}.linear{which}": way for number in (0, 1) for which, way in ((1, "column"), (2, "row"))
    }


def test_shared_weights_and_sizes_that_do_not_divide_stay_whole() -> None:
    model = nn.ModuleDict({"tokens": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False), "odd": nn.Linear(4, 3)})
    model["head"].weight = model["tokens"].weight
    model["fine"] = nn.Linear(3, 4)
    assert make_plan(model, 2) == {"fine": "gather"}


def test_embeddings_are_divided_unless_a_look_up_changes_them() -> None:
    model = nn.ModuleList([nn.Embedding(9, 4), nn.Embedding(9, 4, max_norm=1.0)])
    assert make_plan(model, 2) == {"0": "gather"}


def test_a_hugging_face_model_follows_its_own_plan_if_every_worker_gets_whole_heads() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    attention = {name: way for name, way in make_plan(model, 2).items() if "self_attn" in name}
    assert set(attention.values()) == {"column", "row"}
    four = make_plan(model, 4)
    assert {way for name, way in four.items() if "self_attn" in name} == {"gather"}, "two heads of keys for four"
    assert {way for name, way in four.items() if "mlp" in name} == {"column", "row"}
    assert four["lm_head"] == "gather"


def test_norms_inside_divided_attention_get_the_gradients_of_all_heads() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(config)
    plan = make_plan(model, 2)
    prefix = "model.layers.0.self_attn"
    assert (plan[f"{prefix}.q_proj"], plan[f"{prefix}.q_norm"]) == ("column", "summed")


def test_an_own_plan_is_all_that_counts() -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(2)])
    assert make_plan(model, 2, lambda _: {"*.0": "column"}) == {"0.0": "column", "1.0": "column"}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"blocks.*": "row"}, "has no such module"),
        ({"0": "diagonal"}, "allowed are column, row, gather"),
        ({"1": "column"}, "cannot be divided as 'column' by 2"),
        ({"2": "row"}, "cannot be divided as 'row' by 2"),
    ],
)
def test_an_own_plan_that_cannot_be_is_refused(plan: dict[str, str], words: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(3, 4))
    with pytest.raises(InvalidSpec, match=words):
        make_plan(model, 2, lambda _: plan)


def test_a_model_without_matrices_to_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="no matrices that 2 processes could divide"):
        make_plan(nn.Linear(3, 3), 2)
