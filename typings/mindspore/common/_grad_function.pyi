from typing import Any

class _Function:
    forward: Any
    @classmethod
    def apply(cls, *args: Any) -> Any: ...
