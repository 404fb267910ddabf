"""Settings of the service: from the environment, else from `config.toml` in the data folder.

An unknown or invalid key is an error that names it, so that a typing mistake never turns into a
default without a word.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import time
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)

ENV_PREFIX = "NIGHTOWL_"
CONFIG_FILE = "config.toml"
_DAY_S = 86_400

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class ConfigError(Exception):
    """A setting that cannot be used; `key` is its name as the user wrote it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def parse_bytes(value: object) -> int:
    """Bytes from a count or from text such as "4GB" (10^9 each) or "512 MiB" (2^20 each).

    Raises ValueError for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'must be bytes or a size such as "4GB" or "512MiB", not {value!r}')
    number, unit, binary = match.groups()
    if binary and not unit:
        raise ValueError(f'must be bytes or a size such as "4GB" or "512MiB", not {value!r}')
    base = 1024 if binary else 1000
    return int(float(number) * base ** " kmgt".index(unit.lower() or " "))


def parse_clock(value: object) -> time:
    """A time of day from "HH:MM", 24 hours. Raises ValueError for anything else."""
    if isinstance(value, time) and value == time(value.hour, value.minute):
        return value
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'must be a time of day such as "03:00", not {value!r}')
    return time(int(match[1]), int(match[2]))


def _loopback(host: str) -> str:
    """The host, if it can be reached from this machine only. Raises ValueError otherwise."""
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ValueError(f"must be a loopback address such as 127.0.0.1, not {host!r}")
    return host


ByteCount = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
ClockTime = Annotated[
    time,
    BeforeValidator(parse_clock),
    PlainSerializer(lambda at: at.strftime("%H:%M"), return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}),
]
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Settings(BaseModel):
    """Everything that can be set, with its default. Sizes are bytes, shares are in [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data_dir: Folder = Field(
        default_factory=lambda: platformdirs.user_data_path("nightowl", appauthor=False)
    )
    models_dir: Folder | None = None  # so that several data folders can share large models
    host: Annotated[str, AfterValidator(_loopback)] = "127.0.0.1"
    port: int = Field(8077, ge=0, le=65535)  # 0 takes a free port
    base_model: str = Field("smollm2-135m", min_length=1)
    memory_budget: ByteCount = 4 * 1000**3
    max_body_bytes: ByteCount = 2 * 1024**2
    night_enabled: bool = True
    night_at: ClockTime = time(3)
    night_until: ClockTime = time(7)  # matters when training = "night"
    training: Literal["always", "idle", "night"] = "always"
    idle_after_s: float = Field(5.0, ge=0, le=_DAY_S)  # matters when training = "idle"
    duty_cycle: float = Field(1.0, ge=0.01, le=1)  # share of the time that training may take
    step_limit_s: float = Field(120.0, gt=0, le=_DAY_S)  # a longer engine step counts as wedged
    probe_after_s: float = Field(60.0, gt=0, le=_DAY_S)  # an engine idle so long makes a token
    heldout_fraction: float = Field(0.2, gt=0, lt=1)
    min_heldout: int = Field(20, ge=1)
    alpha: float = Field(0.05, gt=0, lt=1)
    max_error_share: float = Field(0.2, ge=0, le=1)  # above it a task's grades need repair first
    max_trivial_share: float = Field(0.5, ge=0, le=1)  # above it a task is flagged as hackable
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def db(self) -> Path:
        """The database file."""
        return self.data_dir / "nightowl.db"

    @property
    def models(self) -> Path:
        """The folder of base models."""
        return self.models_dir or self.data_dir / "models"

    @property
    def experts(self) -> Path:
        """The folder of the expert store."""
        return self.data_dir / "experts"

    @property
    def runs(self) -> Path:
        """The folder of resumable training state, one folder per job."""
        return self.data_dir / "runs"

    @property
    def token(self) -> Path:
        """The file of the bearer token."""
        return self.data_dir / "token"


def load_settings(
    environ: Mapping[str, str] = os.environ, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from `overrides` (a command's options), `environ`, the file, and the defaults.

    The first that names a key wins. Creates nothing. Raises ConfigError for an unknown key or a bad
    value in any of them, and for a file that cannot be read.
    """
    options = dict(overrides or {})
    variables = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX)
    }
    named = {**variables, **options}
    place = {key: named[key] for key in ("data_dir",) if key in named}
    labels = {key: f"{ENV_PREFIX}{key.upper()}" for key in variables} | {
        key: key for key in options
    }
    data_dir = _validate(place, labels).data_dir
    stored = _read_file(data_dir / CONFIG_FILE)
    return _validate(
        {**stored, **named}, {key: f"{key} in {CONFIG_FILE}" for key in stored} | labels
    )


def _read_file(path: Path) -> dict[str, Any]:
    """The keys of the configuration file; none when there is no file."""
    try:
        stored = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(CONFIG_FILE, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(CONFIG_FILE, f"is not valid TOML: {error}") from error
    if "data_dir" in stored:
        raise ConfigError(
            f"data_dir in {CONFIG_FILE}",
            f"cannot be set in a file of the data folder itself; set {ENV_PREFIX}DATA_DIR",
        )
    return stored


def _validate(values: Mapping[str, Any], labels: Mapping[str, str]) -> Settings:
    """Settings from `values`; a ConfigError names the first bad key as `labels` spells it."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"is not a setting; the settings are {', '.join(Settings.model_fields)}"
        raise ConfigError(labels[key], message) from error
