from longdecode.identification.plan import IdentificationPlan, build_plan


def checked_plan() -> IdentificationPlan:
    """What the configuration asks of head identification; a wrong one ends the run with its message alone."""
    try:
        return build_plan(config, RUN.source)
    except ConfigError as error:
        raise SystemExit(f"ConfigError: {error}")


def role_settings(name: str) -> str:
    """All settings that a run's roles depend on, and no others."""
    spec = ROLE_RUNS[name]
    settings = {
        "data": IDENTIFICATION.data,
        "device": RUN.device,
        "dtype": RUN.dtype,
        "model": IDENTIFICATION.models[spec.model],
        "run": repr(spec),
    }
    return json.dumps(settings, sort_keys=True, default=str)


IDENTIFICATION = checked_plan()
ROLE_RUNS = IDENTIFICATION.identification.runs
ROLE_FILES = [
    f"{RESULTS}/identification/{spec.model}/{name}/roles.json"
    for name, spec in ROLE_RUNS.items()
]
OVERLAP = (
    [f"{RESULTS}/overlap.csv"]
    if IDENTIFICATION.identification.overlap is not None
    else []
)
IDENTIFICATION_CODE = (
    folder_hash("identification", "engine") if config.get("identification") else ""
)
