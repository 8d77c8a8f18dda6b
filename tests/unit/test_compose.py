"""docker-compose.yml, Dockerfile and deploy/ without a Docker engine: valid, and true to the rest of the repository."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import fastjsonschema
import pytest
import yaml

from backends.asr.metrics import AsrPromptMetrics
from backends.decoder.metrics import DecoderMetrics
from backends.encoder.metrics import EncoderMetrics
from backends.launch.options import find_overrides, parse_options
from backends.launch.pipelines import pipeline_of
from backends.launch.process import STACK_BYTES
from backends.launch.repository import find_models
from backends.metrics import Histogram
from backends.prompt.service import PromptMetrics
from backends.vocoder.metrics import VocoderMetrics
from client.__main__ import build_parser
from tests.compose import COMPOSE_FILE, SERVERS, healthcheck, interpolate, load, seconds, variables_of, words
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "voxstage.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
#: What ending may take beyond --exit-timeout-secs: unloading (4 s), killing (5 s), removing shared memory.
ENDING_SECONDS = 10

each_server = pytest.mark.parametrize("name", SERVERS)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return load()


@pytest.fixture(scope="module")
def validate() -> Any:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    return fastjsonschema.compile(schema)


def options_of(service: dict[str, Any]) -> Any:
    python, script, *arguments = words(service["command"])
    assert (python, script) == ("python", "serve.py")
    return parse_options(arguments, ROOT)


@pytest.mark.parametrize(
    ("text", "variables", "wanted"),
    [
        ("a$$b", {}, "a$b"),
        ("${A}-$A.", {"A": "1"}, "1-1."),
        ("${A:-x}${A-y}", {}, "xy"),
        ("${A:-x}${A-y}", {"A": ""}, "x"),
        ("${A:-x}${A-y}", {"A": "1"}, "11"),
        ("${A:-}", {}, ""),
        ("${A:+x}${A+y}", {"A": ""}, "y"),
        ("${A:+x}${A+y}", {}, ""),
        ("${A:-./a/b:c}", {}, "./a/b:c"),
    ],
)
def test_interpolation(text, variables, wanted):
    assert interpolate(text, variables) == wanted


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("${A}", KeyError),
        ("${A:?missing}", KeyError),
        ("${A:-${B}}", ValueError),
        ("5$", ValueError),
        ("$1", ValueError),
    ],
)
def test_what_interpolation_refuses(text, error):
    with pytest.raises(error):
        interpolate(text, {})


def test_the_file_follows_the_schema(compose, validate):
    validate(compose)
    validate(load({name: str(7000 + number) for number, name in enumerate(variables_of())}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda server: server.update(restarts="always"),
        lambda server: server["healthcheck"].update(test=1),
        lambda server: server["volumes"].append({"source": "."}),
        lambda server: server.update(ports="8000"),
    ],
)
def test_the_schema_refuses_a_spoilt_file(compose, validate, spoil):
    spoilt = copy.deepcopy(compose)
    spoil(spoilt["services"]["voxstage"])
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        validate(spoilt)


def test_the_version_of_triton_stands_in_one_place(compose):
    version = variables_of()["TRITON_VERSION"]
    assert re.fullmatch(r"\d\d\.\d\d", version)
    for name in SERVERS:
        assert load({"TRITON_VERSION": "99.01"})["services"][name]["build"]["args"]["TRITON_VERSION"] == "99.01"
    settings = re.sub(r"(?m)^\s*#.*$", "", COMPOSE_FILE.read_text(encoding="utf-8"))
    assert settings.count(version) == 1 and version not in DOCKERFILE
    assert re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE)[0] == (
        "nvcr.io/nvidia/tritonserver:${TRITON_VERSION}-py3",
        "gpu",
    )


def test_ports_are_open_to_this_machine_only(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 8 and all(port.startswith("127.0.0.1:") for port in ports)
    opened = load({"BIND_ADDRESS": "0.0.0.0"})["services"]
    assert all(port.startswith("0.0.0.0:") for service in opened.values() for port in service.get("ports", []))


@each_server
def test_ports_agree_wherever_they_stand(name):
    compose = load({"HTTP_PORT": "9100", "GRPC_PORT": "9101", "METRICS_PORT": "9102"})
    service = compose["services"][name]
    assert options_of(service).ports == {"http": 9100, "grpc": 9101, "metrics": 9102}
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in (9100, 9101, 9102)]
    assert "127.0.0.1:9101" in healthcheck(service)
    (targets,) = yaml.safe_load(compose["configs"]["targets"]["content"])
    (alias,) = service["networks"]["default"]["aliases"]
    assert targets == {"targets": [f"{alias}:9102"]}


@each_server
def test_options_are_known_to_serve(name):
    variables = {"MODEL_CONFIG": "tensorrt", "SERVE_ARGS": "--set tts_decoder.max_running=32 --canary-interval 5"}
    options = options_of(load(variables)["services"][name])
    assert options.host == "0.0.0.0"
    assert (options.config_name, options.canary_interval) == ("tensorrt", 5)
    overrides = find_overrides(options, find_models(options.repositories, options.config_name))
    assert overrides["tts_decoder"] == {"device": "cpu" if "cpu" in name else "cuda", "max_running": "32"}


def test_both_servers_differ_in_image_and_device_only(compose):
    gpu, cpu = (copy.deepcopy(compose["services"][name]) for name in SERVERS)
    assert gpu.pop("command").replace("--device cuda", "--device cpu") == cpu.pop("command")
    assert cpu.pop("profiles") == ["cpu"]
    assert gpu.pop("deploy")["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    ]
    for service in (gpu, cpu):
        target = service["build"].pop("target")
        assert service.pop("image") == f"voxstage:{target}"
        assert f" AS {target}\n" in DOCKERFILE
    assert gpu == cpu


@each_server
def test_a_server_is_confined_checked_and_started_again(compose, name):
    service = compose["services"][name]
    options = options_of(service)
    assert service["restart"] == "unless-stopped"
    assert seconds(service["stop_grace_period"]) >= options.exit_timeout + ENDING_SECONDS
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert int(service["user"].split(":")[0]) > 0
    assert service["ulimits"]["stack"] == STACK_BYTES
    (tmpfs,) = service["tmpfs"]
    assert tmpfs.startswith("/tmp:exec") and service["environment"]["HOME"] == "/tmp"
    python, dash, module, *arguments = healthcheck(service)
    assert (python, dash, module) == ("python", "-m", "client")
    check = build_parser().parse_args(arguments)
    assert check.timeout < seconds(service["healthcheck"]["timeout"])
    assert seconds(service["healthcheck"]["start_period"]) >= options.load_timeout


def test_volumes_exist_and_are_read_only(compose):
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            if isinstance(volume, str):  # a named volume
                assert volume.split(":")[0] in compose["volumes"]
                continue
            assert volume["read_only"] and not volume["bind"]["create_host_path"], name
            assert (ROOT / volume["source"]).is_dir(), volume["source"]
    checkpoint = compose["services"]["voxstage"]["volumes"][1]
    inside = checkpoint["target"].removeprefix(compose["services"]["voxstage"]["working_dir"] + "/")
    # Docker cannot make the place for a mount inside a read-only one.
    assert (ROOT / inside).is_dir()
    stages = [model for model in find_models([ROOT / "model_repository"]) if pipeline_of(model.name) == "tts"]
    defaults = {model.parameters["checkpoint"] for model in stages}
    assert defaults == {inside}


def test_the_dockerfile_adds_what_pyproject_needs():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    assert block is not None
    wanted = {re.split(r"[<>=]", line)[0] for line in re.findall(r'^ *"([^"]+)"', block[1], re.MULTILINE)}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert [stage for stage, _ in stages] == ["gpu", "cpu"]
    for stage, body in stages:
        (command,) = re.findall(r"pip install --no-cache-dir --constraint \S*/requirements\.lock \\\n(.*)", body)
        packages = {package.strip('"') for package in command.split()}
        assert packages == wanted - ({"nvidia-pytriton"} if stage == "gpu" else set())
        for package in packages:
            assert re.search(rf"(?m)^{re.escape(package.split('[')[0])}==", lock), package
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{path}" for path in re.findall(r"^COPY (\S+)", DOCKERFILE, re.MULTILINE)} == set(allowed) - {"*"}


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_metrics_exist_under_the_names_that_prometheus_sees(path):
    known = set()
    for metrics in (PromptMetrics(), DecoderMetrics(), VocoderMetrics(), EncoderMetrics(), AsrPromptMetrics()):
        for metric in metrics:
            parts = ("_bucket", "_sum", "_count") if isinstance(metric, Histogram) else ("",)
            known |= {metric.name + part for part in parts}
    named = set(re.findall(r"\bvoxstage_\w+", path.read_text(encoding="utf-8")))
    assert named and named <= known, sorted(named - known)


def test_monitoring_finds_its_files(compose):
    services = compose["services"]
    prometheus = services["prometheus"]
    assert prometheus["profiles"] == services["grafana"]["profiles"] == ["monitoring"]
    mount = prometheus["volumes"][0]
    assert f"--config.file={mount['target']}/prometheus.yml" in words(prometheus["command"])
    config = yaml.safe_load((ROOT / mount["source"] / "prometheus.yml").read_text(encoding="utf-8"))
    assert [(ROOT / mount["source"] / rule).resolve() for rule in config["rule_files"]] == [ALERTS]
    (job,) = config["scrape_configs"]
    assert job["file_sd_configs"] == [{"files": [prometheus["configs"][0]["target"]]}]
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert all(f'job="{job["job_name"]}"' in rule["expr"] for rule in rules if "up{" in rule["expr"])

    grafana, mount = services["grafana"], services["grafana"]["volumes"][0]
    inside = grafana["environment"]["GF_PATHS_PROVISIONING"].removeprefix(mount["target"] + "/")
    provisioning = ROOT / mount["source"] / inside
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "voxstage.yml").read_text(encoding="utf-8"))[
        "providers"
    ]
    folder = ROOT / mount["source"] / provider["options"]["path"].removeprefix(mount["target"] + "/")
    assert list(folder.iterdir()) == [DASHBOARD]
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert all(
        target["expr"].count("(") == target["expr"].count(")") for panel in panels for target in panel["targets"]
    )


def test_the_document_lists_every_variable():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\|", DOCUMENT, re.MULTILINE))
    assert {name: value.strip("` ") for name, value in rows.items()} == variables_of()


def test_the_pod_of_the_document_fits_serve():
    (block,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    pod = yaml.safe_load(block)
    (container,) = pod["containers"]
    python, script, *arguments = container["command"]
    assert (python, script) == ("python", "serve.py")
    options = parse_options(arguments, ROOT)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == options.ports
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + options.exit_timeout + ENDING_SECONDS
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= options.load_timeout
    check = build_parser().parse_args(startup["exec"]["command"][3:])
    assert startup["exec"]["command"][:3] == ["python", "-m", "client"] and check.timeout < startup["timeoutSeconds"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
