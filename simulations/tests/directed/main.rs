//! Directed schedules, at least one for each rule of the ledger: the shortest story that goes wrong
//! at once if the rule is broken. `simulations safety --mutants` breaks each and looks.

mod cells;
mod holding;
mod identity;
mod policies;
mod recalls;
mod records;
mod rig;
mod service;
mod store;
mod take_over;
mod time;

use quota_core::policy::Durability;

const VOLATILE: Durability = Durability::Volatile;
const RESERVED: Durability = Durability::Reserved;
