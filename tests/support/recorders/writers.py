"""Record the signatures of the functions of W&B, MLflow and SwanLab that our writers call, where these are installed.

python tests/support/recorders/writers.py > tests/assets/writers.json
"""

import inspect
import json
from importlib import import_module

CALLED = {
    "mlflow": ("set_experiment", "start_run", "log_dict", "log_metrics", "end_run"),
    "swanlab": ("init", "log", "finish"),
    "wandb": ("init", "Run.log", "Run.finish"),
}


def signature(package: str, name: str) -> list[list[object]]:
    """[name, kind, whether it may be left out] of each parameter that a caller gives."""
    value = import_module(package)
    for part in name.split("."):
        value = getattr(value, part)
    given = [one for one in inspect.signature(value).parameters.values() if one.name != "self"]
    return [[one.name, one.kind.name, one.default is not one.empty] for one in given]


def record() -> dict[str, object]:
    """Package -> its version and the signatures of its functions."""
    return {
        package: {
            "version": import_module(package).__version__,
            "functions": {name: signature(package, name) for name in names},
        }
        for package, names in CALLED.items()
    }


if __name__ == "__main__":
    print(json.dumps(record()))
