"""The container engine of this machine, with an image of any OpenEnv server that OPENENV_TEST_IMAGE names."""

from __future__ import annotations

import os
import subprocess

import pytest

from openenv import GenericEnvClient
from openenv.core.containers.runtime import LocalDockerProvider
from openenv.core.exceptions import ProviderError

IMAGE = os.environ.get("OPENENV_TEST_IMAGE", "")

pytestmark = pytest.mark.skipif(not IMAGE, reason="OPENENV_TEST_IMAGE names no image of an OpenEnv server")


def test_an_image_from_its_start_to_its_end() -> None:
    try:
        provider = LocalDockerProvider()
    except ProviderError as error:
        pytest.skip(str(error))
    engine = provider._engine.name
    with GenericEnvClient.from_docker_image(IMAGE, provider=provider, ready_timeout_s=60) as env:
        name = provider._container_name or ""
        assert env.reset().done is False
    listed = subprocess.run(
        [engine, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    assert name
    assert name not in listed.stdout.split()


def test_an_image_that_is_not_there() -> None:
    with pytest.raises(ProviderError, match="could not be started"):
        GenericEnvClient.from_docker_image("openenv-no-such-image:none").sync()
