"""Trains a plan and sends loss and step time to an OpenTelemetry collector, the one of OTEL_EXPORTER_OTLP_ENDPOINT:
opentelemetry_log.py PLAN NPROC. Needs `pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`.
"""
import sys

import prun
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=10_000)])
gauges = {name: meters.get_meter("prun").create_gauge(f"prun.{name}") for name in ("step", "loss", "time_s")}
prun.run(sys.argv[1], nproc=int(sys.argv[2]), on_step=lambda row: [
    gauge.set(row[name]) for name, gauge in gauges.items() if row.get(name) is not None])
meters.shutdown()  # exports the last values
