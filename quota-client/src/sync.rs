//! Where the lock-free parts take their primitives from: the standard library, or loom, which runs
//! their models through every interleaving (`interleavings`).

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
