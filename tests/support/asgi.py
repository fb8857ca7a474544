"""Starlette's test client, without its warning about the HTTP library that it runs on here."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

__all__ = ["TestClient"]
