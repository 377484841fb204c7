//! Admission logs of real gateways against the ideal bucket.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;
use simulations::admission_log::{Admission, Summary, check_log};
use simulations::oracle::IdealLimit;

/// What was admitted, by policy (with its namespace) and key.
pub type Admissions = BTreeMap<(String, String), Vec<Admission>>;

/// Reads the lines that gateways append with `--log-admissions`. A line that a killed gateway did
/// not finish is left out: what it would have said was not answered either.
///
/// # Errors
/// If a log cannot be read or a whole line in it makes no sense.
pub fn read_logs<'a>(paths: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<Admissions> {
    let mut admissions = Admissions::new();
    for path in paths {
        read_log(path, |at| at, &mut admissions)?;
    }
    Ok(admissions)
}

/// Adds the lines of one log, with its clock readings brought to a common clock by `here`.
///
/// # Errors
/// As for [`read_logs`].
pub fn read_log(
    path: &Path,
    here: impl Fn(Timestamp) -> Timestamp,
    admissions: &mut Admissions,
) -> anyhow::Result<()> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.split_inclusive('\n');
    for line in whole.filter_map(|line| line.strip_suffix('\n')) {
        let (bucket, mut admission) = read_line(line)
            .with_context(|| format!("{}: a line makes no sense: {line:?}", path.display()))?;
        admission.earliest = here(admission.earliest);
        admission.latest = here(admission.latest);
        admissions.entry(bucket).or_default().push(admission);
    }
    Ok(())
}

fn read_line(line: &str) -> Option<((String, String), Admission)> {
    let mut fields = line.split('\t');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (earliest, latest) = (number()?, number()?);
    let bucket = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let cost = Tokens::new(fields.next()?.parse().ok()?);
    let admission = Admission {
        earliest: Timestamp::from_nanos(earliest),
        latest: Timestamp::from_nanos(latest),
        cost,
    };
    Some((bucket, admission))
}

/// Judges all buckets of one policy. Returns what each showed.
///
/// # Errors
/// The first bucket of which more was admitted than its limit allows.
pub fn judge(
    admissions: &mut Admissions,
    policy: &str,
    limit: IdealLimit,
) -> anyhow::Result<Vec<(String, Summary)>> {
    let mut summaries = Vec::new();
    for ((_, key), log) in admissions
        .iter_mut()
        .filter(|((named, _), _)| named == policy)
    {
        let summary = check_log(limit, log).with_context(|| format!("{policy}, key {key}"))?;
        summaries.push((key.clone(), summary));
    }
    anyhow::ensure!(
        !summaries.is_empty(),
        "nothing at all was admitted under {policy}"
    );
    Ok(summaries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::rate::Rate;
    use quota_core::time::Term;

    fn limit() -> IdealLimit {
        let rate = Rate::new(Tokens::new(1), Term::from_seconds(1)).expect("legal");
        IdealLimit {
            capacity: Tokens::new(2),
            rate,
        }
    }

    #[test]
    fn a_log_over_the_limit_is_condemned_and_a_torn_line_is_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let line = |at: u64| format!("{at}\t{at}\tdefault/api\tk\t1\n");
        std::fs::write(&path, format!("{}{}5\t5\tdefault/a", line(1), line(2))).expect("written");
        let mut fine = read_logs([path.as_path()]).expect("readable");
        assert!(judge(&mut fine, "default/api", limit()).is_ok());
        assert!(
            judge(&mut fine, "default/other", limit()).is_err(),
            "nothing to judge is no pass"
        );

        std::fs::write(&path, format!("{}{}{}", line(1), line(2), line(3))).expect("written");
        let mut over = read_logs([path.as_path()]).expect("readable");
        assert!(judge(&mut over, "default/api", limit()).is_err());
    }
}
