"""The configuration: layers in their order, strict about every key, and the same again after a round trip."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cropstar.config import (
    ModelConfig,
    OptimiserConfig,
    SplitConfig,
    TrainConfig,
    dump_config,
    find_config,
    load_yaml,
    resolve_config,
)
from cropstar.errors import InputError, UsageError

REPOSITORY = Path(__file__).resolve().parents[1]
SHIPPED = sorted((REPOSITORY / "configs").glob("*.yaml"))
STORE = {"store": Path("a/store")}


def written(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- precedence


def test_later_layers_win(tmp_path: Path) -> None:
    file = written(tmp_path, "store: from_file\nepochs: 2\nbatch: 2\nseed: 2\n")
    config = resolve_config(file, {"batch": 3, "seed": 3}, ("seed=4",), defaults={"store": Path("newest")})
    assert (config.store, config.epochs, config.batch, config.seed) == (Path("from_file"), 2, 3, 4)
    assert config.patch == TrainConfig(store=Path("s")).patch


def test_the_newest_store_is_only_a_default() -> None:
    assert resolve_config(None, {}, defaults={"store": Path("newest")}).store == Path("newest")
    assert resolve_config(None, STORE, defaults={"store": Path("newest")}).store == Path("a/store")


def test_an_option_that_is_not_given_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "store: s\nmodel: {layers: 2}\n")
    assert resolve_config(file, {"model.layers": None, "epochs": None}).model.layers == 2


def test_sections_are_merged_key_by_key(tmp_path: Path) -> None:
    file = written(tmp_path, "store: s\nmodel: {layers: 2, dropout: 0.1}\n")
    model = resolve_config(file, {"model.layers": 3}, ("model.hidden=8",)).model
    assert (model.layers, model.dropout, model.hidden) == (3, 0.1, 8)


def test_the_last_of_two_assignments_wins() -> None:
    assert resolve_config(None, STORE, ("seed=1", "seed=2")).seed == 2


def test_layers_are_not_changed_by_resolving() -> None:
    defaults: dict[str, Any] = {"store": Path("s")}
    options: dict[str, Any] = {"model.layers": 2}
    resolve_config(None, options, ("model.hidden=3", "seed=1"), defaults=defaults)
    assert defaults == {"store": Path("s")}
    assert options == {"model.layers": 2}


@pytest.mark.parametrize(("name", "hidden"), [("convstar", 32), ("convgru", 32), ("star", 128), ("gru", 128)])
def test_the_width_follows_the_kind_of_model(name: str, hidden: int) -> None:
    assert resolve_config(None, {**STORE, "model.name": name}).model.hidden == hidden
    assert resolve_config(None, {**STORE, "model.name": name, "model.hidden": 7}).model.hidden == 7


# --- what is refused


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=3", "unknown key 'epoch'; did you mean 'epochs'? 'cropstar config' lists all keys"),
        ("model.hiden=3", "unknown key 'model.hiden'; did you mean 'model.hidden'? 'cropstar config' lists"),
        ("lr=3", "unknown key 'lr'; did you mean 'optimiser.learning_rate'? "),
        ("model.hidden_size=3", "did you mean 'model.hidden'? "),
        ("optimizer.clip=3", "unknown key 'optimizer'; did you mean 'optimiser'?"),
        ("epochs=many", "wrong value of 'epochs': input should be a valid integer, not 'many'"),
        ("epochs=2.0", "wrong value of 'epochs'"),
        ("epochs=true", "wrong value of 'epochs'"),
        ("epochs=0", "wrong value of 'epochs': input should be greater than or equal to 1, not 0"),
        ("epochs.first=1", "wrong value of 'epochs'"),
        ("model=star", "wrong value of 'model'"),
        ("model.day_encoding=sine", "wrong value of 'model.day_encoding'"),
        ("store=", "wrong value of 'store'"),
        ("split.test=0.9", "validation and test together must leave something to train on"),
        ("optimiser.learning_rate=.inf", "wrong value of 'optimiser.learning_rate'"),
        ("optimiser.learning_rate=.nan", "wrong value of 'optimiser.learning_rate'"),
        ("optimiser.clip=1e999", "wrong value of 'optimiser.clip'"),
        ("store.folder=1", "cannot set 'store.folder': 'store' is a value"),
        ("epochs", "--set epochs: not of the form key=value"),
        ("=3", "--set =3: not of the form key=value"),
        ("epochs=[1", "not valid YAML in --set epochs"),
        ("model.hidden=064", "'064' is not a plain number"),  # of YAML 1.1: 52
        ("seed=1:30", "'1:30' is not a plain number"),  # 90
        ("epochs=2020-13-45", "not valid YAML in --set epochs"),
        (f"epochs={'9' * 5000}", "not valid YAML in --set epochs"),
    ],
)
def test_a_wrong_assignment_says_what_is_wrong(assignment: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_config(None, STORE, (assignment,))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("store: s\nstore: t\n", "line 2: the key 'store' appears twice"),
        ("store: s\nmodel: {layers: 1, layers: 2}\n", "line 2: the key 'layers' appears twice"),
        ("store: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("? [a]\n: 1\n", "a key is not plain text"),
        ("null: 1\n", "a key is not plain text"),
        ("store: [s\n", "line 2"),
        ("store: s\n---\nstore: t\n", "another document"),
        ("store: \0\n", "special characters are not allowed"),
        ("[" * 600, "recursion"),
    ],
)
def test_bad_yaml_is_refused_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError, match="not valid YAML") as caught:
        resolve_config(file, {})
    assert why in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_bomb_of_aliases_gives_a_short_message(tmp_path: Path) -> None:
    levels = "".join(f"- &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9))
    file = written(tmp_path, f"epochs:\n- &a0 [x]\n{levels}store: s\n")
    with pytest.raises(UsageError, match="wrong value of 'epochs'") as caught:
        resolve_config(file, {})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["", "just text\n", "- a\n- list\n"])
def test_a_file_without_keys_is_no_configuration(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no keys at the top"):
        resolve_config(written(tmp_path, text), {})


def test_files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="not a text file"):
        resolve_config(file, {})
    file.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match="too large to be a configuration"):
        resolve_config(file, {})
    with pytest.raises(UsageError, match="no such configuration"):
        resolve_config(tmp_path, {})


def test_without_a_store_the_user_is_sent_to_ingest() -> None:
    with pytest.raises(InputError, match="no store yet in data/stores; make one with 'cropstar ingest'") as caught:
        resolve_config(None, {"epochs": 3})
    assert caught.value.exit_code == 3


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        resolve_config(None, STORE).epochs = 3  # type: ignore[misc]


# --- numbers


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("-2e+4", -2e4), ("1.e2", 100.0), ("0.5", 0.5), ("3", 3)]
)
def test_numbers_are_numbers(text: str, value: float) -> None:
    read = load_yaml(text, "text")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["e3", "1e", "1e-3x", "v1e-3", "'1e-3'"])
def test_text_stays_text(text: str) -> None:
    assert load_yaml(text, "text") == text.strip("'")


def test_a_learning_rate_without_a_dot() -> None:
    assert resolve_config(None, STORE, ("optimiser.learning_rate=1e-3",)).optimiser.learning_rate == 0.001


# --- round trip

models = st.builds(
    ModelConfig,
    name=st.sampled_from(["convstar", "star", "null", "1e5", "yes"]),
    layers=st.integers(1, 64),
    hidden=st.integers(1, 4096),
    dropout=st.floats(0, 1, exclude_max=True),
    day_encoding=st.sampled_from(["none", "sincos"]),
)
fractions = st.floats(0, 0.5, exclude_min=True, exclude_max=True)
optimisers = st.builds(
    OptimiserConfig,
    learning_rate=st.floats(0, exclude_min=True, allow_infinity=False),
    weight_decay=st.floats(0, allow_infinity=False),
    clip=st.floats(0, exclude_min=True, allow_infinity=False),
    schedule=st.sampled_from(["constant", "polynomial"]),
    warmup=st.integers(0, 10**9),
)
names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1)
stores = st.builds(Path, names | st.from_regex(r"[-+]?[0-9]{1,3}(\.[0-9])?[eE][0-9]{1,3}", fullmatch=True))
configurations = st.builds(
    TrainConfig,
    store=stores,
    model=models,
    split=st.builds(SplitConfig, validation=fractions, test=fractions),
    optimiser=optimisers,
    epochs=st.integers(1, 10**6),
    batch=st.integers(1, 10**6),
    patch=st.integers(4, 512),
    seed=st.integers(0, 2**63),
)


@given(configurations)
def test_what_is_saved_with_a_run_reads_back_the_same(config: TrainConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert resolve_config(written(Path(folder), dump_config(config)), {}) == config


# --- what ships with cropstar


def test_configurations_ship() -> None:
    assert {"demo-convstar", "demo-star"} <= {file.stem for file in SHIPPED}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_configuration_resolves(file: Path) -> None:
    config = resolve_config(find_config(file.stem), {})
    assert resolve_config(file, {}) == config
    assert config.store.parts[:2] == ("data", "stores")


def test_the_demonstration_is_the_default() -> None:
    config = resolve_config(find_config("demo-convstar"), {})
    assert config == TrainConfig(store=config.store)


def test_a_path_is_taken_before_a_shipped_name(tmp_path: Path) -> None:
    file = written(tmp_path, "store: s\n")
    assert find_config(str(file)) == file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo-convstr", "unknown configuration 'demo-convstr'; did you mean 'demo-convstar'? known: "),
        ("nowhere/demo-star", "no such configuration: nowhere/demo-star"),
        ("absent.yaml", "no such configuration: absent.yaml"),
    ],
)
def test_unknown_configurations(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_config(name)
    assert message in str(caught.value)
