//! Calls into the database: its errors and its panics become errors of the store.
//!
//! It does not decide what follows from a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;

use crate::store::error::StoreError;
use crate::store::format::{self, Tree};
use crate::store::panic_text;

pub(super) fn read<T: DeserializeOwned>(
    from: &sled::Tree,
    tree: Tree,
    key: &[u8],
    name: impl Fn() -> String,
) -> Result<Option<T>, StoreError> {
    caught("reading", || from.get(key))?
        .map(|bytes| format::decode(tree, key, &bytes, name))
        .transpose()
}

/// Visits records until one is refused. The database may panic on damage, hence the catch around
/// each step.
pub(super) fn each(
    mut rows: sled::Iter,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    while let Some((key, value)) = caught("reading", || rows.next().transpose())? {
        visit(&key, &value)?;
    }
    Ok(())
}

/// Runs a step of the database; its panics become errors.
pub(super) fn caught<T>(
    doing: &'static str,
    step: impl FnOnce() -> Result<T, sled::Error>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Corruption { at, .. })) => Err(StoreError::Corrupt {
            tree: "database",
            key: at.map_or_else(|| "unknown".to_owned(), |at| format!("at {at:?}")),
            what: format!("found while {doing}"),
        }),
        Ok(Err(source)) => Err(StoreError::Backend {
            doing,
            source: source.into(),
        }),
        Err(panic) => Err(StoreError::Backend {
            doing,
            source: format!("it panicked: {}", panic_text(&*panic)).into(),
        }),
    }
}
