"""Stage 8l: training from start to end: data, model, Lightning's trainer, the run folder.

>>> import tempfile
>>> small, short = ModelConfig(d_model=4, n_layers=1, d_state=8), TrainConfig(batch_size=2, steps=2, device="cpu")
>>> with tempfile.TemporaryDirectory() as folder:
...     options = {"length": 32, "d_min": 2, "d_max": 2, "cases": 8}
...     run = train("window-copy", options, small, short, Path(folder), show=False)
...     sorted(path.name for path in run.folder.iterdir())
['best.ckpt', 'curves.png', 'last.ckpt', 'metrics.csv', 'result.json', 'run.json', 'tensorboard', 'test.npy']
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wavessm.data import get_task
from wavessm.data.source import DataSet
from wavessm.errors import DataError, MissingExtraError, OptionError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint
from wavessm.training.batches import EvalBatches, as_trained
from wavessm.training.checkpoint import RunError
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.direct import start_at_ridge
from wavessm.training.distributed import ALONE, DistInfo, team_of
from wavessm.training.evaluate import evaluate_split, score_parts
from wavessm.training.folder import Run, environment, fill, held, new_folder
from wavessm.training.launch import launch
from wavessm.training.metrics import SELECTION, bootstrap


def train(
    task: str,
    options: dict[str, Any],
    model: ModelConfig,
    config: TrainConfig,
    out: Path | None = None,
    recipe_name: str = "custom",
    show: bool = True,
) -> Run:
    """A new run in `out` (or the next free folder of runs/); returns it when it is done.

    options: replaces fields of the task's data options. show: a progress bar.
    """
    require_extra()
    recipe = config
    if recipe.direct_start == "ridge" and not model.direct:
        raise OptionError("direct_start is 'ridge', but the model has no direct path; add --direct.")
    team = team_of(recipe)
    if team is None:
        _check_machine(recipe)
        folder = new_folder(out, task)
        try:
            launch(train, (task, options, model, config, folder, recipe_name, show), folder, recipe.devices)
        except BaseException:
            with suppress(OSError):
                folder.rmdir()  # if nothing was written
            raise
        return Run.read(folder)
    device = pick_device(recipe, team)
    chosen = get_task(task).with_options(options)
    data = chosen.load(recipe.seed)
    as_trained(data, recipe)  # what does not fit is refused before anything is written
    model = model_config(task, model, data.info, recipe.precision)
    _check_data(data, recipe, model.norm)
    torch.manual_seed(recipe.seed)
    network = SequenceModel(model)
    folder = new_folder(out, task) if team.rank == 0 else out or Path("runs")  # the others write nothing
    run = Run(folder, task, chosen, recipe_name, model, config, data.info, environment(), chosen.checksum())
    if team.rank == 0:
        run.write()
    with held(folder) if team.rank == 0 else nullcontext():
        _fit(run, network, data, RunContext(device, team, show), None)
    return run


def resume(folder: Path, show: bool = True, devices: int | None = None, nodes: int | None = None) -> Run:
    """Go on with the run in a folder, from its last checkpoint, as if it had never stopped; refused while it runs.

    devices, nodes: another number of processes than it began with; batches stay the same.
    """
    require_extra()
    run = Run.read(folder)
    devices = run.config.devices if devices is None else devices
    nodes = run.config.nodes if nodes is None else nodes
    recipe = replace(run.config, devices=devices, nodes=nodes)
    run = replace(run, config=recipe)
    last = folder / "last.ckpt"
    for name in ("metrics.csv", "result.json"):
        if (folder / name).exists() and not last.exists():
            raise RunError(
                f"{last}: is missing, but there is {name}: the run cannot go on. Bring it back, or train again."
            )
    team = team_of(recipe)
    if team is None:
        _check_machine(recipe)
        with held(folder):
            pass  # refused before any process is started
        launch(resume, (folder, show, recipe.devices, recipe.nodes), folder, recipe.devices)
        return run
    with held(folder) if team.rank == 0 else nullcontext():
        _go_on(run, RunContext(pick_device(recipe, team), team, show))
    return run


def _go_on(run: Run, place: RunContext) -> None:
    last = run.folder / "last.ckpt"
    start = checkpoint.load(last) if last.exists() else None
    if start is not None and "optimiser" not in start:
        raise RunError(f"{last}: holds a model alone, nothing to go on from; was it copied from best.ckpt?")
    data = run.load_data()
    _check_data(data, run.config, run.model.norm)
    torch.manual_seed(run.config.seed)
    model = SequenceModel(run.model)
    if start is not None:
        fill(model, start, last)
    _fit(run, model, data, place, start)


@dataclass(frozen=True)
class RunContext:
    """Where this process trains, among which others, and whether it shows progress."""

    device: torch.device
    team: DistInfo
    show: bool


def _check_data(data: DataSet, recipe: TrainConfig, norm: str) -> None:
    """Refuse a validation part that selects nothing, and batches that have no variance."""
    info = data.info
    if norm == "batch" and info.length * (recipe.batch_size // (recipe.devices * recipe.nodes)) == 1:
        raise OptionError(
            f"norm is batch, but batch_size {recipe.batch_size} gives a process one case of one sample: no variance; "
            "use --norm layer or a larger --batch-size."
        )
    if info.kind not in ("multilabel", "regression") or data.val.draws:
        return
    y = torch.cat([batch.y for batch in EvalBatches(data.val, recipe.eval_batch_size)])
    if info.kind == "multilabel":
        same, why = (y == y[0]).all(), "no label has cases with it and cases without it"
    else:
        same, why = (y == y.flatten()[0]).all(), "its targets are all the same"
    if same:
        score = SELECTION[info.kind].name.replace("_", " ")
        raise DataError(
            f"validation part: {score}, by which the best model is chosen, has no value there, since {why} "
            f"(cases: {len(y)}); give a validation part with cases that differ, or more cases to draw it from."
        )


def _check_machine(recipe: TrainConfig) -> None:
    """Refuse processes that cannot be started from here."""
    if recipe.nodes > 1:
        raise OptionError(
            f"nodes is {recipe.nodes}: start the command on every machine, with `torchrun --nnodes {recipe.nodes} "
            f"--nproc-per-node {recipe.devices} … -m wavessm train …` or `srun`."
        )
    if recipe.batch_size < recipe.devices:
        raise OptionError(
            f"batch_size is {recipe.batch_size}, fewer than the {recipe.devices} processes; give each a case at least."
        )
    pick_device(recipe)


def pick_device(recipe: TrainConfig, team: DistInfo = ALONE) -> torch.device:
    """The device a recipe asks for; auto is the GPU where there is one; of several processes each has its own."""
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
    if device.type == "cuda" and recipe.devices > 1:
        seen = torch.cuda.device_count()
        if seen < recipe.devices or device.index is not None:
            raise OptionError(
                f"devices is {recipe.devices} and device {name}: PyTorch sees {seen} GPUs; use --device cuda and at "
                "most so many."
            )
        device = torch.device("cuda", team.local_rank)
    if recipe.cuda_graphs and device.type != "cuda":
        raise OptionError("cuda_graphs needs a GPU; leave it out on the CPU.")
    return device


def _fit(run: Run, model: SequenceModel, data: DataSet, place: RunContext, start: dict[str, Any] | None) -> None:
    from wavessm.training.keeper import Keeper
    from wavessm.training.module import TrainingModule

    plan = run.config.plan(len(data.train))
    device, team = place.device, place.team
    data = data.to(device)
    step = 0 if start is None else start["step"]
    finished = step >= plan.total_steps or (
        start is not None and run.config.patience > 0 and start["waited"] >= run.config.patience
    )
    if not finished:
        if start is None and run.config.direct_start == "ridge":
            start_at_ridge(model, data)
        if team.size > 1 and device.type == "cuda":  # statistics of the whole batch; the CPU has no such layer
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        module = TrainingModule(model, data, run.config, plan, team)
        if start is not None:
            module.step, module.optimiser_state = step, start["optimiser"]
        keeper = Keeper(run.folder, start)
        with _quiet(), _matmul(run.config.precision):
            _trainer(run, module, keeper, place).fit(module)
    if team.rank > 0:
        return
    _conclude(run, data, device)


def _conclude(run: Run, data: DataSet, device: torch.device) -> None:
    """result.json: the best model, and its scores on the test split unless that is left alone."""
    best = run.load_model("best").to(device)
    scores: dict[str, float] = {}
    spans: dict[str, tuple[float, float]] = {}
    parts: dict[str, dict[str, Any]] = {}
    if run.config.test:
        scores, table = evaluate_split(best, data.test, data.info, run.config.eval_batch_size)
        np.save(run.folder / "test.npy", table.astype(np.float32))  # `report.paired` pairs it with another run's
        spans, parts = bootstrap(data.info.kind, table), score_parts(data.info, table)
    picked = checkpoint.load(run.folder / "best.ckpt")
    checkpoint.write_json(
        run.folder / "result.json",
        {
            "task": run.task,
            "family": run.model.family,
            "seed": run.config.seed,
            "best_step": picked["step"],
            "parameters": sum(p.numel() for p in best.parameters()),
            **{f"test_{name}": value for name, value in scores.items()},
            "intervals": spans,
            **({"parts": parts} if parts else {}),
        },
    )


def _trainer(run: Run, module: Any, keeper: Any, place: RunContext) -> Any:
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.strategies import DDPStrategy

    from wavessm.training.progress import Progress

    plan, device, several = module.plan, place.device, place.team.size > 1
    show = place.show and place.team.rank == 0
    gpus = run.config.devices if several else [device.index or 0]
    stretches = math.ceil(plan.total_steps / plan.validate_every) - module.step // plan.validate_every
    logger = TensorBoardLogger(run.folder / "tensorboard", name="", version="", purge_step=module.step + 1)
    return Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=gpus if device.type == "cuda" else run.config.devices,
        num_nodes=run.config.nodes,
        strategy=DDPStrategy(process_group_backend=None if device.type == "cuda" else "gloo") if several else "auto",
        plugins=[TorchElasticEnvironment()] if several and TorchElasticEnvironment.detect() else None,
        precision="bf16-mixed" if run.config.precision == "bf16" else "32-true",
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
