//! `jobvisor stats` and `jobvisor kinds`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::domain::job::JobState;
use crate::inspect;
use crate::inspect::KindStats;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::sqlite::OpenMode;

pub(crate) fn stats(global: &Global) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let (stats, now) = block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        Ok((read(&place, store.as_ref()).await?, store.now().await?))
    })?;
    if global.json {
        stats.iter().for_each(|stats| out::json(&inspect::stats_json_line(stats, now)));
    } else {
        out::data(&inspect::stats_table(&stats, now));
    }
    for stats in stats.iter().filter(|stats| stats.is_unserved()) {
        let jobs = stats.jobs(JobState::Queued);
        out::note(&format!("warning: no living supervisor runs kind `{}`: {jobs} job(s) of it are queued", stats.kind));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn kinds(global: &Global) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let Some(config) = &place.config else {
        return Err(Failure::usage(format!("kinds are declared in a file; there is no `{}`", global.config.display())));
    };
    let stats = block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        Ok(inspect::kind_stats(&store.counts().await?, &[], &store.paused().await?, &[]))
    })?;
    let of_kind = |name: &String| {
        let found = stats.iter().find(|stats| stats.kind == *name).cloned();
        found.unwrap_or_else(|| KindStats {
            kind: name.clone(),
            states: [].into(),
            oldest_queued: None,
            paused: None,
            supervisors: Vec::new(),
        })
    };
    let kinds: Vec<_> = config.kinds.values().map(|kind| (kind, of_kind(&kind.name))).collect();
    if global.json {
        kinds.iter().for_each(|(kind, stats)| out::json(&inspect::kind_json_line(kind, stats)));
    } else {
        out::data(&inspect::kinds_table(&kinds));
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(place: &Place, store: &dyn Store) -> Result<Vec<KindStats>, StoreError> {
    let terms = store.terms().await?;
    let holding = place.holding(&terms)?;
    let living: Vec<_> = terms.into_iter().zip(holding).filter(|(_, holds)| *holds).map(|(row, _)| row).collect();
    Ok(inspect::kind_stats(&store.counts().await?, &store.oldest_queued().await?, &store.paused().await?, &living))
}
