"""Gates over heads: HardKuma, Hard Concrete, and plain numbers."""

from longdecode.training.roles.gates.direct import DirectGates
from longdecode.training.roles.gates.gate import HeadGates
from longdecode.training.roles.gates.hard_concrete import HardConcreteGates
from longdecode.training.roles.gates.hardkuma import HardKumaGates

GATES: dict[str, type[HeadGates]] = {kind.kind: kind for kind in (HardKumaGates, HardConcreteGates, DirectGates)}
"""Kind of gate to its class."""
