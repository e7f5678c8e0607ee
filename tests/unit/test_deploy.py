"""What deploy/ and the pages about places to run say is valid, as far as it can be checked without the place.

Manifests are checked against the schemas of Kubernetes and Compose, and whatever they name exists: files,
ports, services, variables, commands with their options.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from support.guide import DOCS, python_of
from support.lists import each

from release_fixture import RELEASES
from tracked_wheel import ROOT
from txstream.cli.main import parser

DEPLOY = ROOT / "deploy"
COMPOSE: Mapping[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Mapping[str, Any] = COMPOSE["services"]
MANIFESTS = [
    pytest.param(path, document, id=f"{path.stem}-{document['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("txstream:")}
KNOWN_SETTINGS = set(re.findall(r"TXSTREAM_\w+", (DOCS / "settings.md").read_text(encoding="utf-8")))


def parses(words: Sequence[str]) -> None:
    """Fail unless `txstream` with these words is a command that takes them."""
    found: Any = parser()
    left = list(words)
    while hasattr(found, "commands"):
        found = found.commands[left.pop(0)]
    found.make_context("txstream", left, **parser().context_settings)


# --- Compose -----------------------------------------------------------------------------------------------


def test_the_compose_file_is_one() -> None:
    schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(COMPOSE, schema)
    with pytest.raises(jsonschema.ValidationError, match="prots"):
        jsonschema.validate({"services": {"page": {"image": "x", "prots": []}}}, schema)


def test_what_its_services_name_is_there() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", ())) <= set(SERVICES), name
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (
                volume
            )
        build = service.get("build")
        if build is not None:
            assert (DEPLOY / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
    for secret in COMPOSE["secrets"].values():
        (token,) = (DEPLOY / secret["file"]).read_text(encoding="utf-8").splitlines()
        assert len(token) >= 16
    used = {volume.split(":")[0] for one in SERVICES.values() for volume in one.get("volumes", ())}
    assert set(COMPOSE["volumes"]) <= used


def test_its_commands_and_variables_exist() -> None:
    assert set(OURS) == {"topic", "topology", "page"}
    for service in OURS.values():
        assert set(service["environment"]) <= KNOWN_SETTINGS
        if "command" in service:
            parses(service["command"])
        else:
            for call in service["entrypoint"][-1].split("||"):
                program, *words = shlex.split(call)
                assert program == "txstream"
                parses(words)
    for address in ("zookeeper", "kafka", "database"):
        value = OURS["topology"]["environment"][f"TXSTREAM_{address.upper()}"]
        assert address in SERVICES
        assert re.search(rf"\b{address}\b", value)


def test_nothing_is_published_beyond_this_machine_and_the_page_has_its_token() -> None:
    published = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)
    options = dict(word[2:].partition("=")[::2] for word in OURS["page"]["command"] if word.startswith("--"))
    assert options["token-file"] == f"/run/secrets/{OURS['page']['secrets'][0]}"
    assert OURS["page"]["ports"] == [f"127.0.0.1:{options['port']}:{options['port']}"]


def test_prometheus_and_grafana_find_what_they_show() -> None:
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"]}
    for file in prometheus["rule_files"]:
        assert (DEPLOY / mounted[f"/etc/prometheus/{file}"]).is_file()
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "txstream"  # as the alert rules have it
    (found,) = job["dns_sd_configs"]
    assert found["names"] == ["topology"]
    assert f"--metrics=0.0.0.0:{found['port']}" in OURS["topology"]["command"]
    source = yaml.safe_load((DEPLOY / "compose" / "grafana-datasource.yml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((DEPLOY / "compose" / "grafana-dashboards.yml").read_text(encoding="utf-8"))
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"]}
    folder = DEPLOY / mounted[boards["providers"][0]["options"]["path"]]
    assert (folder / "txstream-dashboard.json").is_file()


def test_the_image_is_built_from_the_whole_package() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (extras,) = re.findall(r"/tmp/txstream\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M))
    needed = {path.partition("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}
    needed |= {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert sent == needed
    assert all((ROOT / name).exists() for name in sent)


# --- Kubernetes --------------------------------------------------------------------------------------------


@each(("path", "document"), MANIFESTS)
@each("version", ["1.31", kubernetes_validate.latest_version()])
def test_a_manifest_fits_kubernetes_schema(path: Path, document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_does_not_fit() -> None:
    wrong = json.loads(json.dumps(manifest("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = ["txstream"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one.values[1] for one in MANIFESTS if str(one.id).endswith(f"-{kind}"))
    assert isinstance(found, dict)
    return found


def test_the_driver_is_two_and_what_it_names_is_there() -> None:
    spec = manifest("Deployment")["spec"]
    pod = spec["template"]
    (container,) = pod["spec"]["containers"]
    assert spec["replicas"] == 2
    assert "--standby=warm" in container["args"]
    parses(container["args"])
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {one["name"] for one in container["env"]} <= KNOWN_SETTINGS
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["spec"]["volumes"]
    }
    (port,) = container["ports"]
    assert f"--metrics=0.0.0.0:{port['containerPort']}" in container["args"]
    account = manifest("ServiceAccount")["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == account
    binding = manifest("RoleBinding")
    assert binding["subjects"][0]["name"] == account
    assert binding["roleRef"]["name"] == manifest("Role")["metadata"]["name"]


def test_what_the_guide_adds_for_executors_is_taken() -> None:
    (block,) = blocks("kubernetes.md", "yaml")
    added = yaml.safe_load(block)
    parses([*manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"], *added["args"]])
    (master,) = (one["value"] for one in added["env"] if one["name"] == "TXSTREAM_MASTER")
    assert master.startswith("k8s://https://")
    assert any(
        f"serviceAccountName={manifest('ServiceAccount')['metadata']['name']}" in one for one in added["args"]
    )


# --- the other places --------------------------------------------------------------------------------------


def blocks(guide: str, language: str) -> list[str]:
    text = (DOCS / guide).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def commands_shown(guide: str) -> Iterator[list[str]]:
    """Yield the words of each `txstream` command in the text blocks of a guide, which cannot be run here."""
    for block in blocks(guide, "text"):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^|[ /])txstream ((?:run|package|ui|topic|state)\b.*)", line)
            if found:
                yield shlex.split(found[1])


@pytest.mark.parametrize(("guide", "number"), [("yarn.md", 2), ("airflow.md", 1)])
def test_commands_that_cannot_be_run_here_exist(guide: str, number: int) -> None:
    found = list(commands_shown(guide))
    assert len(found) == number
    for words in found:
        parses(words)


def test_compose_s_commands_exist() -> None:
    (block,) = blocks("compose.md", "text")
    calls = re.findall(r"run --rm (?:-T )?page (.+)$", block, re.M)
    assert len(calls) == 2
    for call in calls:
        parses(shlex.split(call))


def test_the_task_of_airflow_is_a_command_that_exists() -> None:
    found: dict[str, Any] = {}
    exec(python_of(DOCS / "airflow.md"), found)
    program, *words = shlex.split(found["WORD_COUNT"]["bash_command"])
    assert program == "txstream"
    parses(words)


def test_dbt_is_told_when_the_last_batch_was_committed() -> None:
    (block,) = blocks("dbt.md", "yaml")
    ledger, table = yaml.safe_load(block)["sources"][0]["tables"]
    database = sqlite3.connect(":memory:")
    database.executescript((RELEASES / "0.1" / "state.sql").read_text(encoding="utf-8"))
    filtered = (
        f"select max({ledger['loaded_at_field']}) from {ledger['name']} where {ledger['freshness']['filter']}"
    )
    for query in (filtered, table["loaded_at_query"]):
        ours = query.replace("'word-count'", "'opaque-orders'")
        assert ours != query
        ((newest,),) = database.execute(ours)
        ((expected,),) = database.execute(
            "SELECT committed_at FROM txstream_batch WHERE topology = 'opaque-orders' AND txid = 3"
        )
        assert newest == expected
    database.close()
