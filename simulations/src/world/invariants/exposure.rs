//! The ledger knows of every token that can still be spent, and nothing is granted twice.

use quota_core::authority::BucketView;

use super::{EXPOSURE, TWICE, World};

impl World {
    pub(super) fn check_exposure(&mut self, bucket: usize, view: &BucketView) {
        let in_hand = self.in_hand(bucket);
        let ideal_now = self.ideal_now();
        let watched = &mut self.buckets[bucket];
        let ideal = watched
            .ideal
            .level(ideal_now)
            .expect("time never goes back");
        let address = &watched.address;
        let numbers = || {
            format!(
                "{address}: in hand {in_hand}, available {}, outstanding {}, ghost {}, ideal \
                 {ideal}, version {}",
                view.available, view.outstanding, view.ghost, view.version
            )
        };
        self.trace
            .say(self.time, || format!("check: {}", numbers()));
        if in_hand > view.outstanding.plus(view.ghost).get() {
            let numbers = numbers();
            self.fail(EXPOSURE, numbers);
        } else if view.available + i128::from(in_hand) > ideal {
            let numbers = numbers();
            self.fail(TWICE, numbers);
        }
    }
}
