"""Setting up a training: the shape of the model, its target, and folds within the training part.

All of it follows from a store and a configuration, and is checked before a run folder is made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import torch

from cropstar.config import TrainConfig
from cropstar.datasets.fields import FieldName, Fields, ParcelId, Target, assign_units, blocks_of, choose_target
from cropstar.datasets.samples import Prepared, open_parts, require_samples
from cropstar.datasets.splits import PixelSplit, Split
from cropstar.datasets.transforms import SensorChannels, count_regular
from cropstar.errors import InputError, UsageError
from cropstar.models.backends import use_backend
from cropstar.models.contract import Classifier, Shape, require_maps
from cropstar.models.encoding import find_thermal
from cropstar.models.zoo import build_model
from cropstar.runtime import logger
from cropstar.store.fingerprint import Normalisation
from cropstar.store.store import Store
from cropstar.training.losses import Lineages


@dataclass(frozen=True)
class Setup:
    """A store to train on, with the target resolved: what models, data sets and folds of it are made with."""

    store: Store
    target: Target  # what has a class
    device: torch.device
    backend: str | None = None  # see models/backends.py; None: as the model comes

    @classmethod
    def of(cls, store: Store, config: TrainConfig, device: torch.device, backend: str | None = None) -> Setup:
        return cls(store, choose_target(config, store), device, backend)

    @property
    def classes(self) -> int:
        return len(self.store.fingerprint.classes)

    @property
    def lineages(self) -> Lineages:
        """The lineage of each class in a class table with levels; empty without levels."""
        classes = self.store.fingerprint.classes
        return classes.tree().lineages if classes.levels > 1 else ()

    def shape(self, config: TrainConfig) -> Shape:
        """Of what not every model looks at, only what this one, or a member of the ensemble, does."""
        models = [config.model, *config.beside]
        data, season = self.store.fingerprint, self.store.fingerprint.season
        return Shape(
            data.channels,
            self.classes,
            _longest(self.store, config),
            find_thermal(data.bands) if any(model.day_encoding == "thermal" for model in models) else None,
            (self.lineages or None) if any(model.hierarchy for model in models) else None,
            (season.start, season.length) if any(model.pool == "season" for model in models) else None,
            data.sensor_sizes,
        )

    def build(self, config: TrainConfig, shape: Shape | None = None) -> Classifier:
        """A new model, with weights from the seed."""
        torch.manual_seed(config.seed)
        model = build_model(config.model, shape or self.shape(config))
        if self.backend is not None:
            use_backend(model, self.backend, self.device, training=True)
        return model

    def require(self, config: TrainConfig, model: Classifier) -> None:
        """Refuse a model that does not go with the target, and weights for levels of a flat class table."""
        require_maps(model)
        if self.target == "date" and config.regular.changes:
            choose_target(config, self.store)  # refuses it
        require_samples(self.store, config, self.target, spatial=model.spatial)
        if self.target == "date" and not predicts_by_date(model, self.store.fingerprint.channels):
            why = f"{config.model.name} gives one class to a whole series"
            remedy = "use a model that reads date after date, e.g. --model star"
            raise UsageError("the model cannot classify every date", path=self.store.folder, why=why, remedy=remedy)
        if config.loss.levels and self.store.fingerprint.classes.levels == 1:
            why = "the classes of the store have no levels"
            raise UsageError(
                "loss.levels cannot be used", path=self.store.folder, why=why, remedy="leave loss.levels out"
            )

    def open(
        self, split: Split, config: TrainConfig, model: Classifier, normalisation: Normalisation | None = None
    ) -> tuple[dict[str, Prepared], Normalisation]:
        """The samples of all parts as the model reads them, and their normalisation: measured, unless it is given."""
        return open_parts(
            self.store,
            split,
            config,
            spatial=model.spatial,
            regular=config.regular,
            normalisation=normalisation,
            target=self.target,
        )

    def folds(self, split: Split, config: TrainConfig, count: int) -> list[Split]:
        """See `inner_folds`."""
        return inner_folds(self.store, split, config, self.target, count)


def scene_recipes(store: Store) -> dict[str, str]:
    """How each scene of a store was made, as a digest: scenes of one recipe have the same content."""
    return {name: str(scene.get("recipe", "")) for name, scene in store.manifest.scenes.items()}


def _longest(store: Store, config: TrainConfig) -> int:
    longest = max(reader.length for _, reader in store.readers())
    data = store.fingerprint
    of_each = [longest // len(data.sensors)] * len(data.sensors) if data.sensors else []  # about, for the memory's span
    return max(count_regular(longest, data.season, config.regular, SensorChannels.of(data), of_each), 1)


@torch.no_grad()
def predicts_by_date(model: Classifier, bands: int) -> bool:
    """Whether a series model gives scores after every date; asked of the model itself, with a series of one date."""
    training = model.training
    model.eval()  # neither random numbers nor running means are touched
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    try:
        model.by_date(
            torch.zeros(1, 1, bands, device=device),
            torch.ones(1, 1, dtype=torch.bool, device=device),
            torch.zeros(1, 1, dtype=torch.int32, device=device),
        )
    except NotImplementedError:
        return False
    finally:
        model.train(training)
    return True


def without_test(split: Split) -> Split:
    """The split as a trial may know it: parcels of the test part are in no part at all."""
    if isinstance(split, PixelSplit):
        return split  # every parcel is in all parts; by the mask of pixels the test part stays apart
    kept = {parcel: part for parcel, part in split.part_of.items() if part != "test"}
    return Split(kept, {parcel: split.label_of[parcel] for parcel in kept}, split.about)


def inner_folds(store: Store, split: Split, config: TrainConfig, target: Target, folds: int) -> list[Split]:
    """Training and validation parcels together, dealt out to the folds; what stays together there does so here.

    Fields are dealt class by class. By block, scene or group the units are; of a field in several units only the
    pieces in the fold of its first one are kept. Where the split itself took fields of the training units for
    validation, as it does when a single group is left to train on, fields are dealt here as well. Of fewer units than
    folds, each is a fold, unless the user chose what validation is.
    """
    if config.split.by == "pixel":
        raise UsageError("no folds by pixel", why="neighbours would be in all of them", remedy="use split.by=parcel")
    rest = without_test(split)
    fields = Fields.of(store, dated=target == "date")
    pieces = {
        field: own
        for field, parcels in fields.pieces.items()
        if (own := [parcel for parcel in parcels if parcel in rest.part_of])
    }
    everything = config.split.out_of_fold
    whole_units = config.split.by != "parcel" and (everything or bool(rest.about.get("units", {}).get("validation")))
    if not whole_units:  # a data set's own split among them
        order = [field for members in fields.shuffled_by_class(config.seed, pieces) for field in members]
        fold_of = {parcel: place % folds for place, field in enumerate(order) for parcel in pieces[field]}
        count = len(order)
    else:
        unit_of = _units(store, fields, config, pieces)
        tallies: dict[str, Counter[int]] = defaultdict(Counter)
        for parcel, unit in unit_of.items():
            tallies[unit][rest.label_of[parcel]] += 1
        dealt = assign_units(tallies, {str(fold): 1 / folds for fold in range(folds)}, config.seed)
        fold_of = _keep_units_whole({parcel: int(dealt[unit]) for parcel, unit in unit_of.items()}, pieces)
        count = len(tallies)
    if count < folds and count > 1 and whole_units and config.split.validation is None and not everything:
        logger.info("only %d folds: training and validation have no more by %s", count, config.split.by)
        return inner_folds(store, split, config, target, count)
    if count < folds:
        why = f"{'the store has' if everything else 'training and validation have'} {count} by {config.split.by}"
        raise InputError(f"no {folds} folds", path=store.folder, why=why, remedy="use fewer folds")
    labels = {parcel: rest.label_of[parcel] for parcel in fold_of}
    return [
        Split({parcel: "validation" if own == fold else "train" for parcel, own in fold_of.items()}, labels, rest.about)
        for fold in range(folds)
    ]


def _units(
    store: Store, fields: Fields, config: TrainConfig, pieces: dict[FieldName, list[ParcelId]]
) -> dict[ParcelId, str]:
    parcels = [parcel for own in pieces.values() for parcel in own]
    if config.split.by == "block":
        blocks = blocks_of(store, fields, config.split.block)
        return {parcel: block for field, block in blocks.items() for parcel in pieces.get(field, [])}
    return {parcel: parcel[0] if config.split.by == "scene" else fields.group_of[parcel] for parcel in parcels}


def _keep_units_whole(fold_of: dict[ParcelId, int], pieces: dict[FieldName, list[ParcelId]]) -> dict[ParcelId, int]:
    kept: dict[ParcelId, int] = {}
    for own in pieces.values():
        dealt = [parcel for parcel in own if parcel in fold_of]
        kept.update({parcel: fold_of[parcel] for parcel in dealt if fold_of[parcel] == fold_of[dealt[0]]})
    return kept
