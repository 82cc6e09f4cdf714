//! Slots: how much of each service this engine does at a time.

use super::Heart;
use crate::store::Store;

impl<S: Store> Heart<S> {
    pub(super) fn reserve(&mut self, service: &str) -> bool {
        if self.lone.holds_back() {
            return false;
        }
        match self.services.get_mut(service) {
            Some(service) if service.free > 0 => {
                service.free -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Takes a slot even if none is free.
    pub(super) fn occupy(&mut self, service: &str) {
        if let Some(service) = self.services.get_mut(service) {
            service.free -= 1;
        }
    }

    pub(super) fn release(&mut self, service: &str) {
        if let Some(service) = self.services.get_mut(service) {
            // As long as there was room, whatever there was to claim has been asked for.
            self.may_claim |= service.free <= 0;
            service.free += 1;
        }
    }
}
