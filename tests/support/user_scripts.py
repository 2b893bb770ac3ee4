"""Run a training script inside a rank of a test's pool, as one of the processes that msrun starts would run it."""

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch


def run_script(backend, script: Path, arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """(exit code, standard error) of a script run as __main__ in `folder` on this rank; its ranks meet over the pool's
    backend."""
    from pynative import collectives, parallel_state

    os.chdir(folder)
    errors, code = io.StringIO(), 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", [str(script), *arguments]))
        stack.enter_context(patch.object(sys, "excepthook", sys.excepthook))
        stack.enter_context(patch.object(sys, "path", [str(script.parent), *sys.path]))
        stack.enter_context(patch.object(collectives, "connect", lambda *how, **also: backend))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else bool(ended.code)
        finally:
            parallel_state.destroy_model_parallel()
    return int(code), errors.getvalue()
