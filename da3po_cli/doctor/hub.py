"""Checks of the Hugging Face hub: what the config needs from it, what is in the cache, and whether it answers."""

from __future__ import annotations

import base64
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from da3po_cli.config.paths import expanded
from da3po_cli.doctor.findings import Context, Finding, fail, gib, ok, warn
from da3po_cli.doctor.machine import nearest_existing, why_not_writable
from da3po_cli.output import redact

ENDPOINT = "https://huggingface.co"
SECONDS = 5.0  # for an answer of the hub
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_YES = ("1", "ON", "YES", "TRUE")


def cache_directory(env: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it downloads."""
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return expanded(env.get("HF_HUB_CACHE") or home / "hub")


def wanted(context: Context) -> list[str]:
    """What the config takes from the hub and the cache does not have."""
    cache = cache_directory(context.env)
    data = [f"datasets--{name.partition(':')[0].replace('/', '--')}" for name in context.hub_data]
    missing = [name for name, folder in zip(context.hub_data, data, strict=True) if not (cache / folder).is_dir()]
    return ([context.hub_model] if context.hub_model else []) + missing


def cache(context: Context) -> Iterator[Finding]:
    path = cache_directory(context.env)
    held = sorted(folder.name for folder in path.glob("*--*--*")) if path.is_dir() else []
    place = nearest_existing(path)
    why = why_not_writable(place)
    facts = {"path": str(path), "repositories": len(held), "writable": why is None}
    needed = wanted(context)
    if why is not None and needed:
        yield fail("hub cache", f"{path}: {why}, for {', '.join(needed)}", "HF_HOME=DIR on another disk", **facts)
    elif why is not None:
        yield warn("hub cache", f"{path}: {why}", "HF_HOME=DIR on another disk", **facts)
    else:
        free = gib(shutil.disk_usage(place).free)
        yield ok("hub cache", f"{path}: {len(held)} model(s) and data set(s), {free} free", **facts)


def hub(context: Context) -> Iterator[Finding]:
    env, needed = context.env, wanted(context)
    endpoint = (env.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    token = any(env.get(name) for name in TOKENS) or (cache_directory(env).parent / "token").is_file()
    # never the token itself, nor the user and password that an endpoint may carry
    facts = {"endpoint": redact(endpoint, env), "token": token, "wanted": needed, "offline": False, "reachable": None}
    use = f"for {', '.join(needed)}" if needed else "nothing is needed from it"
    away = "download it where there is a network and give its directory: --model DIR, --dataset FILE"
    switch = next((name for name in OFFLINE if env.get(name, "").upper() in _YES), None)
    if switch is not None:
        facts["offline"] = True
        if needed:
            yield fail("hub", f"switched off by {switch}, {use}", f"unset {switch}, or {away}", **facts)
        else:
            yield ok("hub", f"switched off by {switch}; {use}", **facts)
        return
    why = unreachable(endpoint)
    facts["reachable"] = why is None
    where, has = redact(endpoint, env), "with a token" if token else "without a token"
    if why is None:
        yield ok("hub", f"{where} answers, {has}; {use}", **facts)
    elif needed:
        yield fail(
            "hub", f"{where}: {redact(why, env)}, {use}", f"check the network or HF_ENDPOINT, or {away}", **facts
        )
    else:
        fix = "only models and data sets of the hub need it; HF_HUB_OFFLINE=1 keeps libraries from trying"
        yield warn("hub", f"{where}: {redact(why, env)}; {use}", fix, **facts)


def unreachable(endpoint: str, seconds: float = SECONDS) -> str | None:
    """None where the endpoint answers over HTTP, whatever it answers; else why not."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "this is no http or https address"
    user, _, host = parts.netloc.rpartition("@")
    headers = {"User-Agent": "da3po-doctor"}
    if user:  # urllib takes it for a part of the host's name
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(user).encode()).decode()}"
    try:
        request = urllib.request.Request(parts._replace(netloc=host).geturl(), method="HEAD", headers=headers)
        urllib.request.urlopen(request, timeout=seconds).close()
    except urllib.error.HTTPError as error:
        error.close()
        return None if error.code < 500 else f"answers {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return f"no answer: {error.reason}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer: {error or type(error).__name__}"
    return None
