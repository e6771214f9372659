"""Every shipped preset resolves with every algorithm, from a checkout and from a wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from da3po_cli.algos.table import ALGORITHMS
from da3po_cli.checks.rules import check
from da3po_cli.config import presets
from da3po_cli.config.load import load_config
from da3po_cli.config.plan import overlong_cache
from da3po_cli.errors import UsageError

REPOSITORY = Path(__file__).parents[2]


def test_names() -> None:
    assert {"demo", "qwen3-4b", "qwen3-8b"} <= set(presets.preset_names())


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("name", presets.preset_names())
def test_every_preset_resolves_and_passes_its_checks(
    name: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    config = load_config([name], [f"algo.name={algorithm}"], None, {}).config
    found = [problem for problem in check(config, devices=8) if "demo model is missing" not in problem.message]
    assert found == []


def test_the_qwen3_presets_are_the_papers_run() -> None:
    """What the paper fixes: models, data, G, lambda, tau, DAPO's parts; and DAPO's public batch arithmetic."""
    for name, model in (("qwen3-4b", "Qwen/Qwen3-4B-Base"), ("qwen3-8b", "Qwen/Qwen3-8B-Base")):
        config = load_config([name], env={}).config
        assert config.model.path == model
        assert "DAPO-Math-17k" in config.data.train
        assert (config.algo.name, config.algo.daa_lambda, config.algo.daa_tau) == ("da3po", 2.0, 0.5)
        assert (config.algo.clip_low, config.algo.clip_high, config.algo.dual_clip) == (0.2, 0.28, 10.0)
        assert (config.rollout.group_size, config.rollout.prompts, config.train.mini_batch_prompts) == (16, 512, 32)
        assert (config.rollout.max_tokens, overlong_cache(config)) == (20480, 4096)
        assert (config.train.lr, config.train.weight_decay, config.train.grad_clip) == (1e-6, 0.1, 1.0)


@pytest.mark.parametrize("name", presets.preset_names())
def test_dapo_is_da3po_with_lambda_1(name: str) -> None:
    da3po = load_config([name], ["lambda=1"], None, {}).config
    dapo = load_config([name], ["algo.name=dapo"], None, {}).config
    assert da3po.train == dapo.train
    assert da3po.rollout == dapo.rollout
    assert {**vars(da3po.algo), "name": "dapo"} == vars(dapo.algo)


def test_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout/da3po_cli"
    checkout.mkdir(parents=True)
    monkeypatch.setattr(presets, "_PACKAGE", checkout)
    assert presets.configs_directory() == tmp_path / "checkout/configs"
    (checkout / "configs").mkdir()
    assert presets.configs_directory() == checkout / "configs"


def test_the_wheel_carries_the_presets() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"configs": "da3po_cli/configs"}
    assert project["project"]["scripts"]["da3po"] == "da3po_cli.main:run"


def test_a_path_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    Path("demo").touch()
    assert presets.find_config("mine.yaml") == Path("mine.yaml")
    assert presets.find_config("demo") == presets.configs_directory() / "demo.yaml"
    with pytest.raises(UsageError) as caught:
        presets.find_config("qwen-4b")
    assert "did you mean qwen3-4b?" in (caught.value.hint or "")
