"""postgres-exporter, one for each member. Settings → argv and environment; starts nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Where it listens (host:port), which PostgreSQL it asks (host:port), and the file that holds the password."""

    listen: str
    postgres: str
    password_file: Path


def argv(settings: ExporterSettings, program: Path) -> list[str]:
    """The command line. Its bgwriter collector queries columns that PostgreSQL 17 moved, so it is off."""
    return [
        str(program),
        f"--web.listen-address={settings.listen}",
        "--no-collector.bgwriter",
        "--disable-settings-metrics",
        "--log.level=error",
    ]


def environment(settings: ExporterSettings) -> dict[str, str]:
    """How it logs in; the password itself stays in its file."""
    return {
        "DATA_SOURCE_URI": f"{settings.postgres}/postgres?sslmode=disable",
        "DATA_SOURCE_USER": "postgres",
        "DATA_SOURCE_PASS_FILE": str(settings.password_file),
    }
