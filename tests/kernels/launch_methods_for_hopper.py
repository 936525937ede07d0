"""A step of every method and setting on ``meta`` as on a GPU: host code runs and launches bind, none is made."""

import inspect

import torch
from compile_only import JITFunction, _AbsentGPU, driver

from longdecode.kernels import dispatch
from longdecode.methods.conformance import a_step_never_waits_for_the_host
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.registry import load_card, method_names

OPTIONS = {"num_warps", "num_stages", "maxnreg", "launch_pdl", "enable_fp_fusion"}
launched: list[str] = []


def bind(self, *args, grid, warmup, **named):  # type: ignore[no-untyped-def]
    inspect.signature(self.fn).bind(*args, **{name: value for name, value in named.items() if name not in OPTIONS})
    launched.append(self.__name__)


JITFunction.run = bind
driver.set_active(_AbsentGPU(90))
dispatch.kernel_path = lambda device, dtype=torch.float32: "naive" if device.type == "cpu" else "triton"
for method in method_names():
    card = load_card(method)
    for params in ({}, *map(card.variant_params, card.variants)):
        launched.clear()
        a_step_never_waits_for_the_host(make_bench(method, "cpu", params, dtype=torch.bfloat16, seed=1))
        assert launched
        print(f"{method} {params}: {len(launched)} launches")
