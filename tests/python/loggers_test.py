#!/usr/bin/env python3
"""The examples of tools/python/examples with the real packages: wandb in offline mode, whose file is read again, and
OpenTelemetry with a collector that this test runs. Usage: loggers_test.py PRUN BUILD
"""
import http.server
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import venv_of_tests  # noqa: E402

venv_of_tests.rerun_inside(sys.argv[2], {
    "wandb": "wandb", "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http"})
from google.protobuf.json_format import MessageToDict  # noqa: E402
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest  # noqa: E402
from wandb.proto import wandb_internal_pb2  # noqa: E402

PRUN, TOP = sys.argv[1], HERE.parents[1]
STEPS = 3


def records(path):
    """Yields the rows of history in a file of wandb's offline mode: 7 bytes, then blocks of 32 KiB with chunks of
    records, each with CRC-32 (4 bytes), length (2) and type (1: whole, 2: first, 3: middle, 4: last), like LevelDB's log.
    """
    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or 32768 - at % 32768 < 7:  # the end of a block
            at += 32768 - at % 32768
            continue
        record += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            message, record = wandb_internal_pb2.Record.FromString(record), b""
            if message.WhichOneof("record_type") == "history":
                yield {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message.history.item}


class Collector(http.server.BaseHTTPRequestHandler):
    bodies = []

    def do_POST(self):
        Collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass


class Loggers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prun-loggers-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.plan = self.folder / "small.lua"
        self.plan.write_text(f"""
            local prun = require "prun"
            return prun.plan {{
              mesh = prun.mesh {{ dp = prun.world }}, steps = {STEPS},
              model = prun.models.mlp {{ width = 16 }},
              data = prun.data.random {{ batch = 4 }},
              strategy = {{ prun.zero3 {{ axis = "dp" }} }}, optimizer = prun.sgd {{ lr = 0.1 }},
            }}""")

    def run_example(self, name, **variables):
        words = {**os.environ, "PYTHONPATH": str(TOP / "tools/python"), "PRUN_COMMAND": PRUN, **variables}
        run = subprocess.run([sys.executable, TOP / "tools/python/examples" / name, self.plan, "2"], cwd=self.folder,
                             env=words, capture_output=True, text=True, timeout=100)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_wandb_has_a_row_for_each_step(self):
        self.run_example("wandb_log.py", WANDB_MODE="offline", WANDB_SILENT="true")
        file, = self.folder.glob("wandb/offline-run-*/*.wandb")
        rows = list(records(file))
        self.assertEqual([row["step"] for row in rows], list(range(1, STEPS + 1)))
        self.assertEqual([row["_step"] for row in rows], [row["step"] for row in rows])
        for row in rows:
            self.assertGreater(row["loss"], 0)
            self.assertGreater(row["time_s"], 0)

    def test_a_collector_gets_the_last_values(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.run_example("opentelemetry_log.py",
                             OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_address[1]}")
            server.shutdown()
        values = {}
        for body in Collector.bodies:
            for part in MessageToDict(ExportMetricsServiceRequest.FromString(body))["resourceMetrics"]:
                for metric in part["scopeMetrics"][0]["metrics"]:
                    point = metric["gauge"]["dataPoints"][-1]
                    values[metric["name"]] = float(point.get("asDouble", point.get("asInt", 0)))
        self.assertEqual(values["prun.step"], STEPS)
        self.assertGreater(values["prun.loss"], 0)
        self.assertGreater(values["prun.time_s"], 0)


if __name__ == "__main__":
    sys.argv.remove("--inside")
    unittest.main(argv=[sys.argv[0]])
