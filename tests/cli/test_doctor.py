"""lockstep doctor, through the real program."""

import json

CHECKS = ["torch", "devices", "threads", "cpu quota", "shared memory", "network", "disk", "clock", "data"]
CHECKS += ["image caches", "arithmetic", "portable", "exact sum"]


def test_this_machine_has_no_failure(refused_here, tmp_path):
    done = refused_here("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert [check["check"] for check in record["checks"]] == CHECKS
    assert record["counts"]["FAIL"] == 0
    assert sum(record["counts"].values()) == len(CHECKS)
    assert len(record["machine"]["probe"]) == 64
    assert list(tmp_path.iterdir()) == []


def test_a_failure_has_a_remedy_and_an_exit_code(refused_here, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere9")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    done = refused_here("doctor")
    assert (done.returncode, done.stderr) == (4, "")
    lines = done.stdout.splitlines()
    failed = next(number for number, line in enumerate(lines) if line.startswith("FAIL"))
    assert "there is no interface nowhere9" in lines[failed]
    assert "-> set GLOO_SOCKET_IFNAME" in lines[failed + 1]
    assert any(line.startswith("WARN  threads") for line in lines)
    assert lines[-1].endswith(" 1 FAIL")
    assert any(line.startswith("PASS  exact sum") for line in lines)


def test_it_is_refused_under_an_outer_launch(refused_here, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    done = refused_here("doctor")
    assert done.returncode == 2
    assert "starts its own processes" in done.stderr
