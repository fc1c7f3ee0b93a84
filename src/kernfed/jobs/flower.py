"""The main function of a ServerApp: one job on the nodes of its run."""

from flwr.app import Context
from flwr.serverapp import Grid

from kernfed.federation.asking import Federation
from kernfed.jobs.run import Job, check_job, run_job


def serve(grid: Grid, context: Context) -> None:
    """Main function of a ServerApp: do the job that the run's configuration names, and write its results.

    See ``kernfed.jobs.run`` for the settings. A job that fails raises, so that Flower calls the run failed.
    """
    job = Job.from_settings(context.run_config, run=str(context.run_id))
    check_job(job)  # before any site is waited for

    def report(text: str) -> None:
        print("\n".join(f"kernfed: {line}" for line in text.splitlines()), flush=True)

    with Federation.flower(
        grid, seed=job.seed, caller=job.caller, expect=job.sites, min_sites=job.min_sites, wait=job.wait, report=report
    ) as federation:
        report(f"{job.kind}: results are in {run_job(federation, job)}")
