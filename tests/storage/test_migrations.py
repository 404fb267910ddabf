"""The schema is what the tables say, and the first version's rows survive every upgrade."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import storage.migrations.versions
from storage import db, episodes, jobs, settings, tasks, versions
from storage.db import Database
from storage.errors import Corrupt, SchemaTooNew
from storage.tables import GradeStatus, JobStatus, Row, VersionState

SCHEMA = {
    "tasks": "name system_prompt tools response_schema grader grader_hash base_model training "
    "active_version_id created_at updated_at",
    "episodes": "id seq task messages completion item group_key model client_id idempotency_key "
    "content_hash created_at tool_calls",
    "grades": "id episode_id grader_hash status score subscores error_kind error seconds "
    "created_at",
    "jobs": "id seq task status trainer config seed trigger progress outcome error version_id "
    "created_at started_at finished_at",
    "job_events": "id job_id seq type data created_at",
    "experts": "task kind last_number created_at",
    "versions": "id task number state parent_id base_model base_hash basis_hash bytes manifest "
    "job_id created_at activated_at",
    "activations": "id task version_id created_at",
    "settings": "key value",
}


@pytest.fixture
def connection(database: Database, tmp_path: Path) -> Iterator[sa.Connection]:
    """A plain connection to the migrated database."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/nightowl.db")
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def _described(connection: sa.Connection) -> dict[str, Any]:
    """Everything SQLite knows about every table, in an order of its own."""
    inspector = sa.inspect(connection)
    return {
        table: {
            "columns": [
                (c["name"], str(c["type"]), c["nullable"], c["default"], c["primary_key"])
                for c in inspector.get_columns(table)
            ],
            "keys": sorted(map(str, inspector.get_foreign_keys(table))),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "indexes": sorted(map(str, inspector.get_indexes(table))),
        }
        for table in sorted(inspector.get_table_names())
        if table != "alembic_version"
    }


def test_the_migrations_make_exactly_the_tables_of_the_code(connection: sa.Connection) -> None:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    assert compare_metadata(context, Row.metadata) == []
    fresh = sa.create_engine("sqlite://")
    with fresh.begin() as made:
        Row.metadata.create_all(made)
        assert _described(connection) == _described(made)
    fresh.dispose()


def test_the_schema_is_the_one_written_down_here(connection: sa.Connection) -> None:
    described = _described(connection)
    names = {
        table: " ".join(column[0] for column in described[table]["columns"]) for table in described
    }
    assert {table: set(text.split()) for table, text in names.items()} == {
        table: set(text.split()) for table, text in SCHEMA.items()
    }


def test_migrating_again_changes_nothing(database: Database, make_task: Callable[..., Any]) -> None:
    with database.session() as session:
        make_task(session)
    database.migrate()
    with database.reading() as session:
        assert len(tasks.list_tasks(session)) == 1


FIRST_ROWS = """
INSERT INTO tasks VALUES ('home', 'You are a house.', NULL, '{"type":"object"}', '{"type":"multi"}',
    'g1', 'smollm2-135m', '{"sigma":0.04}', 'V', '2026-01-02T03:04:05.000006Z',
    '2026-01-02T03:04:05.000006Z');
INSERT INTO episodes VALUES ('ep_1', 1, 'home', '[{"role":"user","content":"hi"}]', 'done()',
    '{"answer":1}', 'g', 'smollm2-135m', NULL, 'k', 'h', '2026-01-02T03:04:05.000006Z');
INSERT INTO grades VALUES (1, 'ep_1', 'g1', 'passed', 1.0, '{"name":1.0}', NULL, NULL, 0.01,
    '2026-01-02T03:04:05.000006Z');
INSERT INTO jobs VALUES ('job_1', 1, 'home', 'succeeded', 'fura_s', '{}', 7, 'night', '{}',
    '{"p":0.001}', NULL, 'V', '2026-01-02T03:04:05.000006Z', NULL, NULL);
INSERT INTO job_events VALUES (1, 'job_1', 1, 'progress', '{"iteration":1}',
    '2026-01-02T03:04:05.000006Z');
INSERT INTO experts VALUES ('home', 'spectral', 1, '2026-01-02T03:04:05.000006Z');
INSERT INTO versions VALUES ('V', 'home', 1, 'active', NULL, 'smollm2-135m', 'b', 'v', 10,
    '{"kind":"spectral"}', 'job_1', '2026-01-02T03:04:05.000006Z', '2026-01-02T03:04:05.000006Z');
INSERT INTO activations VALUES (1, 'home', 'V', '2026-01-02T03:04:05.000006Z');
INSERT INTO settings VALUES ('schedule', '{"at":"03:00"}');
"""


def _first_version(path: Path) -> None:
    """A database as the first release left it, with a row in every table."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = db.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    plain = sqlite3.connect(path)
    plain.executescript(FIRST_ROWS)
    plain.close()


def test_the_first_versions_rows_survive_the_upgrade(tmp_path: Path) -> None:
    _first_version(tmp_path / "n.db")
    database = Database(tmp_path / "n.db")
    database.migrate()
    with database.session() as session:
        task = tasks.get(session, "home")
        assert (task.response_schema, task.training) == ({"type": "object"}, {"sigma": 0.04})
        assert task.created_at.isoformat() == "2026-01-02T03:04:05.000006+00:00"
        [(episode, grade)] = episodes.graded(session, "home", "g1")
        assert (episode.item, grade.status) == ({"answer": 1}, GradeStatus.PASSED)
        assert episode.tool_calls is None
        job = jobs.get(session, "job_1")
        assert (job.status, job.outcome) == (JobStatus.SUCCEEDED, {"p": 0.001})
        assert jobs.events_after(session, "job_1", 0)[0].data == {"iteration": 1}
        version = versions.resolve(session, "home", 1)
        assert (version.state, version.manifest) == (VersionState.ACTIVE, {"kind": "spectral"})
        assert settings.get(session, "schedule") == {"at": "03:00"}
        assert versions.rollback(session, "home") is None
    database.close()


def test_a_database_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    _first_version(tmp_path / "n.db")
    plain = sqlite3.connect(tmp_path / "n.db")
    plain.executescript("UPDATE alembic_version SET version_num = '9999'")
    database = Database(tmp_path / "n.db")
    with pytest.raises(SchemaTooNew, match="later version of nightowl"):
        database.migrate()
    database.close()
    assert plain.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
    plain.close()


def test_rows_that_refer_to_nothing_stop_the_upgrade(tmp_path: Path) -> None:
    _first_version(tmp_path / "n.db")
    plain = sqlite3.connect(tmp_path / "n.db")
    plain.executescript("UPDATE grades SET episode_id = 'ep_gone'")
    plain.close()
    database = Database(tmp_path / "n.db")
    with pytest.raises(Corrupt, match="1 rows refer"):
        database.migrate()
    database.close()


def test_a_migration_that_fails_half_way_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(config: Any, revision: str) -> None:
        config.attributes["connection"].exec_driver_sql("CREATE TABLE half (x)")
        raise ZeroDivisionError

    database = Database(tmp_path / "n.db")
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", fails)
        with pytest.raises(ZeroDivisionError):
            database.migrate()
    plain = sqlite3.connect(tmp_path / "n.db")
    assert plain.execute("SELECT name FROM sqlite_master").fetchall() == []
    plain.close()
    database.migrate()
    database.close()


def test_revisions_form_one_line_and_live_in_the_package() -> None:
    script = ScriptDirectory.from_config(db.alembic_config())
    assert script.get_bases() == ["0001"]
    assert len(script.get_heads()) == 1
    folder = Path(storage.migrations.versions.__file__).parent
    assert {Path(revision.path).parent for revision in script.walk_revisions()} == {folder}
