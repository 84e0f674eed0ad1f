"""Trained models for other runtimes: ONNX for whole sequences and for streams, and `torch.export`."""

from wavessm.export.files import CHUNK, ExportReport, export_closed, export_onnx, export_torch

__all__ = ["CHUNK", "ExportReport", "export_closed", "export_onnx", "export_torch"]
