//! The one place where this server draws random numbers: identities and hash seeds.

/// 128 bits from the operating system.
///
/// Panics if it has none to give, which on a supported system means that nothing else works
/// either.
#[must_use]
pub fn number() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_draws_differ() {
        assert_ne!(super::number(), super::number());
    }
}
