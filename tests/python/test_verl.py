# SPDX-License-Identifier: Apache-2.0
"""streamkl.verl in verl's own engine: a forward step and its gradient, on the CPU and in one process.

verl needs an older transformers than the other tests, so that it has an environment of its own:
pip install verl cachetools; without it these tests are skipped. Ray, vLLM and GPUs are not part of them."""

import asyncio
import os
import pathlib
import re
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed")

import transformers  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.trainer.distillation import losses as verl_losses  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.config import DistillationConfig, DistillationLossConfig  # noqa: E402
from verl.workers.engine.fsdp import transformer_impl  # noqa: E402

import streamkl  # noqa: E402
import streamkl.verl  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[2] / "examples/verl.md"
VOCABULARY, PROMPTS, RESPONSES = 50, (3, 5, 2), (4, 1, 6)
OURS = {"nitrobrew": "forward", "nitrobrew_reverse_kl": "reverse", "streamkl_forward": "forward"}
OURS.update(streamkl_reverse="reverse", streamkl_jsd="jsd")


def model(width, seed):
    torch.manual_seed(seed)
    sizes = dict(hidden_size=width, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, initializer_range=0.3, attn_implementation="eager", **sizes
    )
    return transformers.LlamaForCausalLM(config).eval()


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Case:
    """A student in an engine of verl's, a teacher, and a micro batch of three sequences of different lengths."""

    def __init__(self, monkeypatch, folder, mode, temperature=1.0):
        monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
        monkeypatch.setattr(transformer_impl, "get_device_name", lambda: "cpu")
        self.student, self.teacher, self.temperature = model(16, 1), model(24, 2), temperature
        self.teacher.save_pretrained(folder)
        self.engine = transformer_impl.FSDPEngineWithLMHead.__new__(transformer_impl.FSDPEngineWithLMHead)
        for name, value in dict(pad_to_length=False, use_ulysses_sp=False, _autocast_dtype=torch.float32).items():
            setattr(self.engine, name, value)
        self.engine.module = self.student
        monkeypatch.setattr(self.engine, "get_data_parallel_group", lambda: None, raising=False)
        self.ids = [torch.randint(0, VOCABULARY, (p + r,)) for p, r in zip(PROMPTS, RESPONSES)]
        self.mask = [torch.ones(r) for r in RESPONSES]
        self.mask[2][2] = 0  # the answer of a tool, say
        with torch.no_grad():
            payload = [streamkl.hf.hidden_states(self.teacher, {"input_ids": x[None]})[0] for x in self.ids]
        self.data = TensorDict(
            {
                "input_ids": nested(self.ids),
                "position_ids": nested([torch.arange(len(x)) for x in self.ids]),
                "prompts": nested([x[:p] for x, p in zip(self.ids, PROMPTS)]),
                "responses": nested([x[p:] for x, p in zip(self.ids, PROMPTS)]),
                "response_mask": nested(self.mask),
                "teacher_logprobs": nested(payload),
                "teacher_ids": nested([x[:, None] for x in self.ids]),
            },
            batch_size=[3],
        )
        said = dict(distillation_use_topk=True, distillation_only=True, use_remove_padding=True)
        said.update(temperature=temperature, dp_size=1, batch_num_tokens=None, global_batch_size=None)
        for name, value in said.items():
            tu.assign_non_tensor(self.data, **{name: value})
        distillation = DistillationConfig(
            distillation_loss=DistillationLossConfig(
                loss_mode=mode, use_task_rewards=False, use_policy_gradient=False, loss_max_clamp=None
            ),
            teacher_models={"default": SimpleNamespace(model_path=str(folder))},
        )
        actor = SimpleNamespace(
            loss_agg_mode="token-mean", global_batch_info={}, loss_scale_factor=None, strategy="fsdp2"
        )
        self.loss = partial(verl_losses.distillation_ppo_loss, config=actor, distillation_config=distillation)

    def step(self):
        return self.engine.forward_step(self.data, self.loss, False)

    def want(self, divergence):
        """From the logits of each sequence alone, in float64: the mean over the tokens of the responses."""
        total = count = 0
        for ids, prompt, mask in zip(self.ids, PROMPTS, self.mask):
            z_s = self.student(input_ids=ids[None]).logits[0].double() / self.temperature
            z_t = self.teacher(input_ids=ids[None]).logits[0].double().detach()
            q, p = z_s.log_softmax(-1), z_t.log_softmax(-1)
            m = ((q.exp() + p.exp()) / 2).log()
            kl = lambda a, b: (a.exp() * (a - b)).sum(-1)  # noqa: E731
            rows = {"forward": kl(p, q), "reverse": kl(q, p), "jsd": (kl(p, m) + kl(q, m)) / 2}[divergence]
            total, count = total + (rows[prompt - 1 : -1] * mask).sum(), count + mask.sum()
        return total / count


@pytest.mark.parametrize("temperature", (1.0, 0.5))
@pytest.mark.parametrize("mode, divergence", OURS.items())
def test_step(monkeypatch, tmp_path, mode, divergence, temperature):
    case = Case(monkeypatch, tmp_path, mode, temperature)
    want = case.want(divergence)
    grads = torch.autograd.grad(want, list(case.student.parameters()))
    loss, output = case.step()
    assert abs(loss - want) <= 2e-6 * want and want > 0.1
    loss.backward()
    for p, g in zip(case.student.parameters(), grads):
        assert (p.grad - g).norm() <= 1e-5 * g.norm() + 1e-8
    assert set(output["model_output"]) == {"distillation_losses"}
    assert abs(output["metrics"]["distillation/loss"].values[0] - want) <= 2e-6 * want


def test_no_logits_are_made(monkeypatch, tmp_path):
    case = Case(monkeypatch, tmp_path, "nitrobrew")
    monkeypatch.setattr(torch.nn.functional, "linear", linear := Widths(torch.nn.functional.linear))
    case.step()
    assert linear.seen and VOCABULARY not in linear.seen


class Widths:
    def __init__(self, own):
        self.own, self.seen = own, set()

    def __call__(self, x, w, *args):
        self.seen.add(w.shape[0])
        return self.own(x, w, *args)


def test_other_modes_are_left_alone(monkeypatch, tmp_path):
    """verl's own top-k loss gives what it gave, with its own payload."""
    case = Case(monkeypatch, tmp_path, "forward_kl_topk")
    values, ids = zip(*[topk_of(case.teacher, x) for x in case.ids])
    case.data["teacher_logprobs"], case.data["teacher_ids"] = nested(list(values)), nested(list(ids))
    case.loss.keywords["distillation_config"].distillation_loss.__dict__["topk"] = VOCABULARY
    loss, _ = case.step()
    assert abs(loss - case.want("forward")) <= 1e-4  # k is the vocabulary, so that it is the same number


def topk_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0].log_softmax(-1).topk(VOCABULARY)


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(distillation_only=False), "use_task_rewards and use_policy_gradient must be False"),
        (dict(calculate_entropy=True), "entropy_coeff must be 0"),
        (dict(use_remove_padding=False), "use_remove_padding must be True"),
        (dict(use_fused_kernels=True), "use_fused_kernels must be False"),
    ],
)
def test_refusals(monkeypatch, tmp_path, flags, message):
    case = Case(monkeypatch, tmp_path, "nitrobrew")
    tu.assign_non_tensor(case.data, **flags)
    with pytest.raises(ValueError, match=message):
        case.step()


def test_teacher(monkeypatch):
    """The manager that asks teachers gives hidden states in place of log-probabilities."""
    monkeypatch.setattr(streamkl.verl, "_teacher", [])
    manager = SimpleNamespace(distillation_config=SimpleNamespace(distillation_loss=SimpleNamespace()))
    manager.distillation_config.distillation_loss.loss_mode = "nitrobrew"
    ask = streamkl.verl.AsyncTeacherLLMServerManager.compute_teacher_logprobs_single
    with pytest.raises(ValueError, match="loss_mode = 'nitrobrew': no function is marked with @streamkl.verl.teacher"):
        asyncio.run(ask(manager, [1, 2, 3]))
    streamkl.verl.teacher(lambda ids, key: torch.full((len(ids), 4), 2.0, requires_grad=True))
    ids, x = asyncio.run(ask(manager, [1, 2, 3], routing_key="a"))
    assert ids.tolist() == [[1], [2], [3]] and x.shape == (3, 4) and not x.requires_grad
    streamkl.verl.teacher(lambda ids, key: torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"hidden states = \(2, 4\): the teacher must give \[3, D\]"):
        asyncio.run(ask(manager, [1, 2, 3]))


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.S)


def test_configuration_of_the_example(tmp_path, monkeypatch):
    """verl's own configuration takes what examples/verl.md writes, and the teacher in it gives hidden states."""
    monkeypatch.setenv("TEACHER", str(tmp_path))
    overrides = re.findall(r"^ +(\S+=\S+)", blocks("sh")[1], re.M)
    overrides = [text.replace("$TEACHER", str(tmp_path)).replace("$STUDENT", "student") for text in overrides]
    assert len(overrides) >= 8, overrides
    folder = pathlib.Path(streamkl.verl.verl_losses.__file__).parents[1] / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    assert config.distillation.enabled and config.actor_rollout_ref.actor.entropy_coeff == 0
    made = omega_conf_to_dataclass(config.distillation)
    assert made.distillation_loss.loss_mode == "nitrobrew" and streamkl.verl._only_teacher(made) == str(tmp_path)

    teacher = model(24, 2)
    teacher.save_pretrained(tmp_path)
    exec(blocks("python")[0], {})
    ids = [1, 2, 3]
    torch.testing.assert_close(
        streamkl.verl._teacher[0](ids, None),
        streamkl.hf.hidden_states(teacher, {"input_ids": torch.tensor([ids])})[0].detach(),
    )


def test_external_module():
    """As the documents say: the environment variable alone registers the losses, in every process that imports verl."""
    program = """
from verl.workers.config import DistillationLossConfig
print([DistillationLossConfig(loss_mode=m).loss_settings.use_topk for m in ("nitrobrew", "nitrobrew_reverse_kl")])"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "VERL_USE_EXTERNAL_MODULES": "streamkl.verl"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip() == "[True, True]", done.stderr[-2000:]
