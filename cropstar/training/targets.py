"""Whether a model can learn what a configuration asks for, said before a run is made."""

from __future__ import annotations

import torch

from cropstar.config import TrainConfig
from cropstar.datasets.fields import Target
from cropstar.datasets.samples import require_samples
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, require_maps
from cropstar.store.store import Store


def require_target(config: TrainConfig, store: Store, model: Classifier) -> Target:
    """What has a class; refuses a store or a model that does not go with it, and weights for levels of a flat table."""
    require_maps(model)
    target = require_samples(store, config, spatial=model.spatial)
    if target == "date" and not speaks_by_date(model, len(store.fingerprint.bands)):
        why = f"{config.model.name} says one class for a whole series"
        remedy = "take a model that reads date after date, e.g. --model star"
        raise UsageError("no class for every date", path=store.folder, why=why, remedy=remedy)
    if config.loss.levels and store.fingerprint.classes.levels == 1:
        why = "the classes of the store have no levels"
        raise UsageError("no levels to weigh", path=store.folder, why=why, remedy="leave loss.levels out")
    return target


@torch.no_grad()
def speaks_by_date(model: Classifier, bands: int) -> bool:
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
