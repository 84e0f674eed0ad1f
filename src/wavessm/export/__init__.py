"""Trained models for other runtimes: ONNX files for whole sequences and for streams."""

from wavessm.export.files import CHUNK, ExportReport, export_onnx

__all__ = ["CHUNK", "ExportReport", "export_onnx"]
