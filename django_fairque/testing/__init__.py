"""Tools for the tests of projects that use django_fairque. Tests need no worker, and a server is needed only if they
use `private_server`.

Each name is imported when it is first used, because pytest loads the plugin of an installed package in every test run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .assertions import FairqueTestMixin as FairqueTestMixin
    from .assertions import assert_enqueued as assert_enqueued
    from .assertions import assert_fair as assert_fair
    from .capture import Capture as Capture
    from .capture import Captured as Captured
    from .capture import capture_tasks as capture_tasks
    from .capture import eager as eager
    from .capture import enqueued as enqueued
    from .servers import private_server as private_server
    from .servers import run_tasks as run_tasks
else:
    from django_fairque.lazy import export_lazily

    _MODULES = {
        "assertions": "FairqueTestMixin assert_enqueued assert_fair",
        "capture": "Capture Captured capture_tasks eager enqueued",
        "servers": "private_server run_tasks",
    }
    __getattr__, __dir__, __all__ = export_lazily(__name__, _MODULES)
