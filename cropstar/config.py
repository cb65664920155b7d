"""The configuration of a training: sections, bounds, defaults, and how it is resolved.

Defaults, then a YAML file, then options, then `--set key=value`. It is strict: an unknown key, a wrong type or a key
given twice is an error with a suggestion. The resolved configuration is saved with every run.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cropstar.config_keys import nearest_keys
from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.inputs import MAXIMUM_CONFIG_BYTES
from cropstar.registry import did_you_mean
from cropstar.runtime import STORES

LaxPath = Annotated[Path, Field(strict=False)]
CONVOLUTIONAL = re.compile("(bi)?conv")  # how the names of image models begin
AUTO = "auto"  # stands for the best of several models
FITTED = ("rf", "hgb")  # models of trees, which are fitted at once and have neither layers nor epochs
SHORT = reprlib.Repr()  # of a wrong value in a message: a few words of YAML aliases can stand for gigabytes
SHORT.maxlevel = 2


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)


class Options(Section):
    """The options of a command or a source; a wrong value is an error of one line."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as failure:
            error = failure.errors()[0]
            cause = error.get("ctx", {}).get("error")
            if isinstance(cause, CropstarError):  # of a validator of ours
                raise cause from None
            name = ".".join(map(str, error["loc"]))
            raise UsageError(f"{name}: {error['input']!r}", why=error["msg"], remedy=f"give another {name}") from None

    def replace(self, **changes: Any) -> Self:
        """A copy with other values."""
        return type(self)(**{**dict(self), **changes})


class ModelConfig(Section):
    """The model: its kind, size and head."""

    name: str = Field("convstar", description="a name from 'cropstar models', or auto: the best of several")
    layers: int = Field(4, ge=1, le=64, description="layers of the model; convolutional models look further with each")
    hidden: int = Field(32, ge=1, le=4096, description="width; 32 for convolutional models, 128 for series models")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of a layer's outputs set to zero in training")
    memory: float | None = Field(None, ge=1, description="longest time scale of a new gate; null: dates / layers")
    day_encoding: Literal["none", "sincos", "thermal"] = Field(
        "sincos",
        description="how the model sees the season: the day of the year, a band of growing degree-days, or nothing",
    )
    pool: Literal["last", "mean", "season"] = Field(
        "last", description="scores from the last state, the mean of all states, or their means in bins of the season"
    )
    bins: int | None = Field(None, ge=2, le=64, description="of pool season: bins of the season; null: 12")
    dense: int = Field(
        0, ge=0, le=4096, description="of pool season: units of a layer between bins and classes; 0: none"
    )
    stem: int = Field(0, ge=0, le=4, description="layers of temporal convolution below the recurrent ones")
    normalise: bool = Field(False, description="batch normalisation between layers")
    variant: str = Field(
        "paper",
        description="star: paper, janet or no-outer-tanh; lstm_forget: paper or janet; gru: paper or reset-after",
    )
    revisit: float | None = Field(None, gt=0, description="of star: usual days between dates, to model irregular ones")
    heads: int | None = Field(None, ge=1, le=64, description="of attention; null: 8 for transformer, 16 for ltae")
    kernel: int | None = Field(
        None, ge=1, le=64, description="observations under a convolution in time; null: by the network, 5 for a stem"
    )
    head: Literal["pixel", "video"] = Field("pixel", description="of image models; video: one class for a whole clip")
    hierarchy: bool = Field(False, description="a head for each level of classes that have levels")
    trees: int | None = Field(None, ge=1, le=100_000, description="of rf: trees, null: 300; of hgb: rounds, null: 100")
    leaf: int | None = Field(None, ge=1, description="of rf and hgb: samples of the smallest leaf; null: by the model")

    @model_validator(mode="after")
    def _width_by_kind(self) -> Self:
        """Series models are cheap per pixel and get the paper's 128.

        Not among the fields that were set: a recipe may choose another width.
        """
        if "hidden" not in self.model_fields_set and not CONVOLUTIONAL.match(self.name):
            self.__dict__["hidden"] = 128
        return self


def _group_names(value: Any) -> tuple[str, ...]:
    """YAML reads 2017 as a number; groups are known by their text."""
    plain = isinstance(value, list | tuple) and all(type(name) in (str, int) for name in value)
    if not plain or not value or len(set(map(str, value))) < len(value):
        raise ValueError("give the names of groups, each once, as a list")
    return tuple(map(str, value))


def _share_or_groups(value: Any) -> float | tuple[str, ...]:
    if isinstance(value, list | tuple):
        return _group_names(value)
    if type(value) not in (int, float) or not 0 < value < 1:
        raise ValueError("give a share between 0 and 1, or a list of groups")
    return float(value)


def _test_share_or_groups(value: Any) -> float | tuple[str, ...]:
    """Also 0: no test part, every field is judged out of fold."""
    return 0.0 if type(value) in (int, float) and value == 0 else _share_or_groups(value)


def _share_groups_or_null(value: Any) -> float | tuple[str, ...] | None:
    return None if value is None else _share_or_groups(value)


Groups = Annotated[tuple[str, ...], BeforeValidator(_group_names)]
TestShareOrGroups = Annotated[float | tuple[str, ...], BeforeValidator(_test_share_or_groups)]
ShareGroupsOrNull = Annotated[float | tuple[str, ...] | None, BeforeValidator(_share_groups_or_null)]
USUAL_VALIDATION = 0.15


class SplitConfig(Section):
    """How parcels are split into training, validation and test. No field is in two parts, except in splits by pixel."""

    name: str | None = Field(None, description="one of the data set's own splits, such as a published fold")
    by: Literal["parcel", "block", "scene", "group", "pixel"] = Field("parcel", description="what stays together")
    block: float = Field(1000.0, gt=0, description="side of a block in metres")
    folds: int | None = Field(
        None, ge=2, le=1000, description="cross-validation: number of folds, one of which is the test part"
    )
    fold: int = Field(1, ge=1, description="which of the folds, from 1")
    train: Groups | None = Field(None, description="scenes or groups by name; null: all that are not named elsewhere")
    validation: ShareGroupsOrNull = Field(
        None,
        description="a share, or scenes or groups by name; null: about 0.15, and whole groups where the test has them",
    )
    test: TestShareOrGroups = Field(
        0.25,
        description="a share, or scenes or groups by name; 0: none, all fields are judged in the folds of cross_fit",
    )

    @property
    def out_of_fold(self) -> bool:
        """Whether there is no test part: the figures are those of all fields, out of fold."""
        return self.test == 0.0

    @property
    def validation_share(self) -> float:
        """The share for validation, unless groups are named."""
        return self.validation if isinstance(self.validation, float) else USUAL_VALIDATION

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The scenes or groups that are given by name, part by part."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {part: names for part, names in parts.items() if isinstance(names, tuple)}

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        by_name = isinstance(self.validation, tuple)
        if not by_name and isinstance(self.test, float) and self.validation_share + self.test >= 1:
            raise ValueError("validation and test together must leave something to train on")
        return self

    @model_validator(mode="after")
    def _one_way_to_split(self) -> Self:
        names = [name for part in self.named.values() for name in part]
        if self.name is not None and (self.by != "parcel" or self.folds or names):
            raise ValueError("split.name selects a complete split: leave out split.by, split.folds and lists of groups")
        if names and self.by not in ("scene", "group"):
            raise ValueError("groups by name are for split.by=group and split.by=scene")
        if names and (self.folds or "test" not in self.named):
            raise ValueError("groups by name need split.test, without split.folds")
        if len(set(names)) < len(names):
            raise ValueError("a group is named for two parts of the split")
        if self.out_of_fold and (
            self.name is not None or self.by == "pixel" or self.folds or self.validation is not None
        ):
            raise ValueError(
                "without a test part all fields are dealt to folds: leave out split.name, .validation, .folds"
            )
        if self.fold > (self.folds or 1):
            raise ValueError(f"split.fold is {self.fold} of {self.folds or 'no'} split.folds")
        return self


class RegularConfig(Section):
    """Averaging of irregular dates to regular ones. Optional: every model handles irregular dates by masks."""

    every: Annotated[int, Field(ge=1, le=366)] | dict[str, Annotated[int, Field(ge=1, le=366)]] | None = Field(
        None, description="days averaged to one date, or a mapping by sensor, {S1: 12}; null: keep the dates"
    )
    fill: Literal["none", "linear"] = Field("none", description="how to fill periods without a clear date")
    join: bool = Field(False, description="what several sensors saw on one day is one date")

    @property
    def changes(self) -> bool:
        """Whether a model gets other dates than those of the data."""
        return self.every is not None or self.join

    @model_validator(mode="after")
    def _regular_before_filled(self) -> Self:
        if self.fill != "none" and self.every is None:
            raise ValueError("regular.fill needs regular.every")
        return self

    def by_sensor(self, names: Sequence[str]) -> tuple[int | None, ...]:
        """The days of each sensor, or of data without names of sensors; S1 speaks of S1-ASC too."""
        if not isinstance(self.every, dict):
            return (self.every,) * max(len(names), 1)
        chosen: list[int | None] = [None] * len(names)
        for wanted, days in self.every.items():
            own = [place for place, name in enumerate(names) if name == wanted or name.startswith(f"{wanted}-")]
            if not own:
                why = f"the data have {', '.join(names) if names else 'one sensor, without a name'}"
                remedy = "name a sensor of the data, or give one number for all"
                raise UsageError(f"no sensor '{wanted}' for regular.every", why=why, remedy=remedy)
            for place in own:
                chosen[place] = days
        return tuple(chosen)


class AugmentationConfig(Section):
    """Random augmentation of training samples, drawn anew in every epoch."""

    date_dropout: float = Field(0.0, ge=0, lt=1, description="share of dates hidden at random")
    day_jitter: int = Field(0, ge=0, le=60, description="dates are shifted by up to this many days")
    flips: bool = Field(False, description="rotate and flip images at random")
    noise: float = Field(0.0, ge=0, description="standard deviation of noise, relative to that of the band")
    scale: float = Field(
        0.0, ge=0, le=1, description="standard deviation of the logarithm of a random factor per sample and band"
    )
    sensor_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of samples in which one of several sensors is hidden"
    )


class SamplingConfig(Section):
    """The order of an epoch's samples."""

    order: Literal["shuffled", "balanced"] = Field(
        "shuffled", description="balanced: rare classes are drawn more often"
    )
    power: float = Field(
        1.0, gt=0, le=1, description="of balanced: 1 draws all classes equally often, 0 in proportion to their size"
    )


class OptimiserConfig(Section):
    """Adam, its learning rate and what is done to gradients and weights."""

    learning_rate: float = Field(0.001, gt=0, description="peak learning rate of Adam")
    weight_decay: float = Field(0.0, ge=0, description="pull of the weights towards zero; see decoupled")
    decoupled: bool = Field(
        False, description="decoupled weight decay of the matrices (AdamW) instead of an L2 penalty on all weights"
    )
    clip: float = Field(1.0, gt=0, description="maximum norm of the gradient")
    schedule: Literal["constant", "polynomial", "cosine", "noam", "plateau"] = Field(
        "polynomial", description="how the learning rate falls over the epochs"
    )
    warmup: int = Field(10, ge=0, description="steps of linear warm-up")
    plateau: int = Field(5, ge=1, description="of the schedule plateau: epochs without a better score before halving")
    average: float = Field(0.0, ge=0, lt=1, description="decay of the moving average of the weights; 0: none")
    micro_batch: int | None = Field(
        None, ge=1, description="patches or series computed at once, to save memory; null: the whole batch"
    )


class LossConfig(Section):
    """The loss over labelled pixels or series, with optional weights for rare classes and hard examples."""

    name: Literal["cross-entropy", "dice"] = Field(
        "cross-entropy", description="dice: the soft Dice coefficient, in which every class counts the same"
    )
    balance: float = Field(0.0, ge=0, le=1, description="0: no class weights; 1: all classes weigh the same")
    focus: float = Field(0.0, ge=0, le=10, description="gamma of the focal loss; 0: plain cross-entropy")
    smoothing: float = Field(
        0.0, ge=0, lt=1, description="label smoothing: share of each label that is spread over all classes"
    )
    levels: float = Field(0.0, ge=0, description="weight of the loss on coarser levels of classes")
    teacher: float = Field(
        0.5, ge=0, le=1, description="of distil and soft_labels: share of the teacher's probabilities in the loss"
    )

    @model_validator(mode="after")
    def _dice_has_no_weights(self) -> LossConfig:
        for unused in ("balance", "focus", "levels"):
            if self.name == "dice" and getattr(self, unused):
                raise ValueError(f"dice does not use {unused}: every class counts the same")
        return self


class TrainConfig(Section):
    """Everything that decides the outcome of a training run."""

    store: LaxPath = Field(description="the folder of the store to train on; default: the newest in data/stores")
    recipe: Literal["auto", "quick", "paper"] = Field(
        "auto", description="settings that are not given: fitted to the data, for a quick look, or as in the paper"
    )
    model: ModelConfig = ModelConfig()
    split: SplitConfig = SplitConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    epochs: int = Field(5, ge=1, description="passes over the training fields")
    batch: int = Field(8, ge=1, description="patches per step")
    series_batch: int = Field(64, ge=1, description="series per step, for stores of series")
    # Small patches: neighbouring pixels are of the same few fields, and a step should see many fields.
    patch: int = Field(12, ge=4, le=512, description="width and height in pixels; twice that for evaluation")
    target: Literal["pixel", "parcel", "date"] | None = Field(
        None,
        description="what is classified; parcel: the mean of its clear pixels; null: pixels of images, else parcels",
    )
    loss: LossConfig = LossConfig()
    sampling: SamplingConfig = SamplingConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    regular: RegularConfig = RegularConfig()
    patience: int | None = Field(
        None, ge=1, description="stop after this many epochs without a better validation score"
    )
    choose_after: float = Field(0.0, ge=0, lt=1, description="share of the epochs after which the best epoch is chosen")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of a training step; float16 needs CUDA"
    )
    compile: bool | Literal["graphs"] = Field(
        False, description="compile the model with torch; graphs: also replay steps as CUDA graphs"
    )
    ensemble: int = Field(1, ge=1, le=100, description="models trained from different seeds, whose scores are averaged")
    beside: list[ModelConfig] = Field([], description="other models whose scores are averaged with those of `model`")
    cross_fit: int = Field(
        0,
        ge=0,
        le=20,
        description="folds of cross-fitting: the model learns from all training fields; with split.test=0 the folds "
        "are the test, too (--folds); 0: hold out a validation part",
    )
    clean: bool = Field(False, description="leave fields whose label is suspect out of training, never out of the test")
    forest: bool = Field(False, description="also fit a random forest to the same fields, as a baseline in the report")
    refit: bool = Field(False, description="at the end retrain on training and validation, up to the best epoch")
    distil: LaxPath | None = Field(
        None, description="a run or model file whose probabilities the model also learns from"
    )
    soft_labels: Literal["none", "forest", "mixes", "both"] = Field(
        "none",
        description="forest: series also learn the out-of-bag probabilities of a random forest; mixes: they are mixed "
        "two by two, and learn the mix of their labels and what a forest says of it; both: half of them each",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of split, order of the samples and first weights")

    @model_validator(mode="after")
    def _folds_judge_without_test(self) -> Self:
        if self.split.out_of_fold and self.cross_fit < 2:
            raise ValueError("split.test=0 needs at least 2 folds in cross_fit (--folds sets both)")
        if self.clean and not self.cross_fit:
            raise ValueError("clean needs folds to find suspects by: set cross_fit to 2 or more")
        return self


# --- how a configuration comes about


def resolve_config(
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...] = (),
    defaults: dict[str, Any] | None = None,
) -> TrainConfig:
    """The configuration of a run; later layers win. `options` has dotted keys, None means not given."""
    data = {key: value for key, value in (defaults or {}).items() if value is not None}
    data |= read_config(file) if file else {}
    for key, value in options.items():
        if value is not None:
            _put(data, key, value)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {assignment}", why="not of the form key=value", remedy="e.g. --set model.hidden=64"
            )
        _put(data, key.strip(), load_yaml(text, f"--set {key}"))
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as failure:
        raise _explain(failure, file) from None


def find_config(name: str) -> Path:
    """The path of a configuration: as given, or the one of that name that ships with cropstar."""
    path = Path(name)
    if path.exists():
        return path
    package = Path(__file__).parent
    installed, checkout = package / "configs", package.parent / "configs"
    folder = installed if installed.is_dir() else checkout
    shipped = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if path.suffix or path.name != name or not shipped:
        raise UsageError("no such configuration", path=path, remedy="check the path")
    if name not in shipped:
        raise UsageError(f"unknown configuration '{name}'", remedy=did_you_mean(name, shipped))
    return shipped[name]


def read_config(file: Path, loader: type[StrictLoader] | None = None) -> dict[str, Any]:
    """A YAML file as a plain dictionary."""
    if not file.is_file():
        raise UsageError("no such configuration", path=file, remedy="check the path")
    if file.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise UsageError("too large to be a configuration", path=file, remedy="give a YAML file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("not a text file", path=file, remedy="give a YAML file") from None
    data = load_yaml(text, file, loader)
    if not isinstance(data, dict):
        raise UsageError("not a configuration", path=file, why="no keys at the top", remedy="write 'key: value' lines")
    return data


def dump_config(config: TrainConfig) -> str:
    """The resolved configuration as YAML that `resolve` reads back to the same value.

    With the model 'auto' only the given settings: the recipe of each candidate fills in the rest.
    """
    return dump_yaml(config.model_dump(mode="json", exclude_unset=config.model.name == AUTO))


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UsageError(f"cannot set '{dotted}'", why=f"'{parent}' is a value", remedy="check the key")
    data[last] = value


def _explain(failure: ValidationError, file: Path | None) -> UsageError | InputError:
    """The first error of pydantic as a one-line error."""
    first = failure.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return UsageError(f"unknown key '{key}'", path=file, remedy=nearest_keys(key))
    if first["type"] == "missing" and key == "store":
        return InputError(
            "no store yet", path=STORES, remedy="make one with 'cropstar ingest', or name it with --store"
        )
    if first["type"] == "missing":
        return UsageError(f"the key '{key}' is missing", path=file, remedy="give it in the configuration or as option")
    why = f"{first['msg'].lower()}, not {SHORT.repr(first['input'])}" if key else first["msg"]
    what = f"wrong value of '{key}'" if key else "wrong configuration"
    return UsageError(what, path=file, why=why, remedy="correct it; --print-config shows all keys")


# --- YAML without its traps: no objects, no duplicate keys, and 1e-3 is a number


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                raise yaml.constructor.ConstructorError(None, None, "a key is not plain text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number. YAML 1.1 reads 010 as eight and 1:30 as ninety."""
        if re.search(r"^[-+]?0[0-9_]|:", node.value):
            why = f"'{node.value}' is not a plain number"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        number: int = super().construct_yaml_int(node)
        return number


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)


class StrictDumper(yaml.SafeDumper):
    """Writes what the strict loader reads back to the same value."""


# YAML 1.1 reads 1e-3 as text, because it has no dot; everyone means the number. Text of that form gets quotes.
YAML_NUMBER = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", YAML_NUMBER, list("-+0123456789"))
StrictDumper.add_implicit_resolver("tag:yaml.org,2002:float", YAML_NUMBER, list("-+0123456789"))


def load_yaml(text: str, origin: Path | str, loader: type[StrictLoader] | None = None) -> Any:
    try:
        data = (loader or StrictLoader)(text).get_single_data()
        _require_characters(data)
        return data
    except (yaml.YAMLError, RecursionError, ValueError) as failure:  # ValueError: a date that is none
        mark = getattr(failure, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        why = place + str(getattr(failure, "problem", None) or failure)
        raise UsageError("not valid YAML", path=origin, why=why, remedy="correct the file") from None


def _require_characters(data: Any, seen: set[int] | None = None) -> None:
    """Refuse text with halves of characters, as "\\ud800" writes them: it cannot be stored anywhere."""
    seen = set() if seen is None else seen
    if isinstance(data, str):
        data.encode("utf-8")  # a UnicodeEncodeError is a ValueError
    elif isinstance(data, dict | list) and id(data) not in seen:
        seen.add(id(data))  # by aliases one part can stand in a billion places
        for value in [*data, *data.values()] if isinstance(data, dict) else data:
            _require_characters(value, seen)


def dump_yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False)
