"""Folders are found from the package's place, or told by the environment; a wrong one is said to be so."""

from __future__ import annotations

import pytest

from transformer_circuits import paths


def test_the_root_is_the_repository():
    assert (paths.ROOT / "src" / "transformer_circuits" / "paths.py").is_file()
    assert (paths.WEIGHTS, paths.DATA, paths.BUILD) == (paths.ROOT / "weights", paths.ROOT / "data", paths.ROOT / "_build")


def test_the_environment_wins(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_ROOT", str(tmp_path))
    assert paths.find_root() == tmp_path


def test_a_folder_that_is_no_clone_is_declined(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="TRANSFORMER_CIRCUITS_ROOT"):
        paths.find_root()
