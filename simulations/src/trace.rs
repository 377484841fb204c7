//! What happened, as a hash always and as text when asked.

/// The trace of one run.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    print: bool,
}

impl Trace {
    /// A trace that is printed to standard output if `print`.
    #[must_use]
    pub fn new(print: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            print,
        }
    }

    /// Takes note of something: FNV-1a over 64-bit words, with a final rotation to carry high bits
    /// down (Fowler, Noll and Vo; the words instead of bytes are for speed).
    pub fn note(&mut self, words: &[u64]) {
        for word in words {
            self.hash = (self.hash ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
    }

    /// Prints a line if asked to.
    pub fn say(&self, now: u64, line: impl FnOnce() -> String) {
        if self.print {
            println!("{:>14} ms  {}", Millis(now), line());
        }
    }

    /// The hash of everything noted.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }
}

/// Nanoseconds shown as milliseconds.
struct Millis(u64);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        f.pad(&text)
    }
}
