"""Trained models for other runtimes: ONNX for whole sequences and for streams, and `torch.export`."""

from wavessm.export.api import CHUNK, Report, Units, export_onnx, export_step_onnx, export_torch

__all__ = ["CHUNK", "Report", "Units", "export_onnx", "export_step_onnx", "export_torch"]
