"""Stage 8l: training from start to end: data, model, Lightning's trainer, the run folder.

>>> from wavessm.training.recipes import ModelOptions, Recipe
>>> import tempfile
>>> tiny = Recipe(ModelOptions(d_model=4, n_layers=1, d_state=8), batch_size=2, steps=2, device="cpu")
>>> with tempfile.TemporaryDirectory() as folder:
...     run = train("window-copy", {"length": 32, "d_min": 2, "d_max": 2, "cases": 8}, tiny, Path(folder), show=False)
...     sorted(path.name for path in run.folder.iterdir())
['best.ckpt', 'curves.png', 'last.ckpt', 'metrics.csv', 'result.json', 'run.json', 'tensorboard']
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.errors import MissingExtraError, OptionError
from wavessm.models import SequenceModel
from wavessm.tasks import data_options, model_config
from wavessm.training import checkpoint
from wavessm.training.evaluate import evaluate_split
from wavessm.training.folder import Run, environment, new_folder
from wavessm.training.loader import Stretch
from wavessm.training.recipes import Recipe


def train(
    task: str,
    options: dict[str, Any],
    recipe: Recipe,
    out: Path | None = None,
    recipe_name: str = "custom",
    show: bool = True,
) -> Run:
    """A new run in `out` (or the next free folder of runs/); returns it when it is done.

    options: replaces fields of the task's data options. show: a progress bar.
    """
    require_extra()
    recipe = recipe.check()
    device = pick_device(recipe)
    chosen = data_options(task, options)
    data = chosen.load(recipe.seed)
    config = model_config(task, recipe.model, data.info, recipe.precision)
    torch.manual_seed(recipe.seed)
    model = SequenceModel(config)
    folder = new_folder(out, task)
    run = Run(folder, task, chosen, recipe_name, recipe, data.info, config, environment())
    run.write()
    _fit(run, model, data, device, None, show)
    return run


def resume(folder: Path, show: bool = True) -> Run:
    """Go on with the run in a folder, from its last checkpoint, as if it had never stopped."""
    require_extra()
    run = Run.read(folder)
    device = pick_device(run.recipe)
    last = folder / "last.ckpt"
    start = checkpoint.load(last) if last.exists() else None
    data = run.options.load(run.recipe.seed)
    if data.info != run.info:
        raise checkpoint.RunError(f"{folder}: the data have changed since the run began; train again on the new ones.")
    torch.manual_seed(run.recipe.seed)
    model = SequenceModel(run.model)
    if start is not None:
        model.load_state_dict(start["model"])
    _fit(run, model, data, device, start, show)
    return run


def pick_device(recipe: Recipe) -> torch.device:
    """The device a recipe asks for; auto is the GPU where there is one."""
    name = recipe.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as reason:
        raise OptionError(f"device is {name!r}, expected auto, cpu, cuda or cuda:1.") from reason
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"device is {name!r}, expected auto, cpu, cuda or cuda:1.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device is cuda, but PyTorch sees no GPU; use --device cpu.")
    if recipe.cuda_graphs and device.type != "cuda":
        raise OptionError("cuda_graphs needs a GPU; leave it out on the CPU.")
    return device


def _fit(
    run: Run, model: SequenceModel, data: DataSet, device: torch.device, start: dict[str, Any] | None, show: bool
) -> None:
    from wavessm.training.keeper import Keeper
    from wavessm.training.module import TrainingModule

    plan = run.recipe.plan(len(data.train))
    data = data.to(device)
    step = 0 if start is None else start["step"]
    finished = step >= plan.total_steps or (
        start is not None and run.recipe.patience > 0 and start["waited"] >= run.recipe.patience
    )
    if not finished:
        module = TrainingModule(model, data, run.recipe, plan)
        if start is not None:
            module.step, module.optimiser_state = step, start["optimiser"]
        keeper = Keeper(run.folder, start)
        with _quiet(), _matmul(run.recipe.precision):
            _trainer(run, module, keeper, device, show).fit(module)
    best = run.load_model("best").to(device)
    scores = evaluate_split(best, data.test, data.info, run.recipe.eval_batch_size)[0]
    picked = checkpoint.load(run.folder / "best.ckpt")
    checkpoint.write_json(
        run.folder / "result.json",
        {
            "task": run.task,
            "family": run.model.family,
            "seed": run.recipe.seed,
            "best_step": picked["step"],
            "parameters": sum(p.numel() for p in model.parameters()),
            **{f"test_{name}": value for name, value in scores.items()},
        },
    )


def bare_module(recipe: Recipe, device: torch.device, shape: tuple[int, int, int]) -> Callable[[], torch.Tensor]:
    """One training step on random multi-label cases (length, channels, labels), without a run: for benchmarks."""
    require_extra()
    from wavessm.training.module import TrainingModule

    length, channels, classes = shape
    cases = 4 * recipe.batch_size
    source = Arrays(torch.randn(cases, length, channels), (torch.rand(cases, classes) < 0.5).float()).to(device)
    info = DataInfo("multilabel", channels, classes, length, classes=tuple(map(str, range(classes))))
    torch.manual_seed(recipe.seed)
    config = model_config("arrays", recipe.model, info, recipe.precision)
    data = DataSet("random", source, source, source, info)
    module = TrainingModule(SequenceModel(config).to(device), data, recipe, recipe.plan(cases))
    optimiser = module.configure_optimizers()
    batches = iter(Stretch(source, recipe.batch_size, recipe.seed, 0, 10**9))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16")
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")

    def step() -> torch.Tensor:
        with autocast:
            return module.advance(next(batches), optimiser)

    return step


def _trainer(run: Run, module: Any, keeper: Any, device: torch.device, show: bool) -> Any:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from wavessm.training.progress import Progress

    plan = module.plan
    stretches = math.ceil(plan.total_steps / plan.validate_every) - module.step // plan.validate_every
    logger = TensorBoardLogger(run.folder / "tensorboard", name="", version="", purge_step=module.step + 1)
    return Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed" if run.recipe.precision == "bf16" else "32-true",
        max_epochs=stretches,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        logger=logger,
        callbacks=[keeper, *([Progress(keeper, f"{run.task} {run.model.family}")] if show else [])],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextmanager
def _matmul(precision: str) -> Iterator[None]:
    """TF32 products while a run that asks for them lasts."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's remarks on hardware, worker processes and loggers; ours are above."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def require_extra() -> None:
    """Say in one line which extra is missing, if one is."""
    try:
        with _quiet():
            import lightning.pytorch  # noqa: F401
            import tensorboard  # noqa: F401
    except ImportError as reason:
        raise MissingExtraError(f"training needs {reason.name}: pip install 'wavessm[train]'.") from reason
