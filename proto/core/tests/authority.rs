//! The authority, driven event by event.

mod authority {
    mod driver;
    mod grants;
    mod policies;
    mod restarts;
}
