//! The authority, driven event by event.

mod authority {
    mod driver;
    mod edges;
    mod grants;
    mod policies;
    mod restarts;
    mod views;
}
