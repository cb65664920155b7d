"""What the tests of remote names share."""

from __future__ import annotations

from tests.store.remote.served import alone as alone
from tests.store.remote.served import bucket as bucket
from tests.store.remote.served import site as site
