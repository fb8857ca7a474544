from typing import Any

WebInterfaceManager: Any = None


def gradio_is_here() -> bool:
    return False


def mount_tab(app: Any, page: Any, builder: Any) -> None: ...
