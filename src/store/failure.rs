//! What an SDK says about a failure.

use std::error::Error as StdError;
use std::fmt;

/// What an SDK says, without requests and answers, which hold grant ids.
#[derive(Clone)]
pub(super) struct Cause(String);

impl Cause {
    /// The texts of an error and of all beneath it.
    #[cfg(any(feature = "dynamodb", feature = "spanner"))]
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            let told = source.to_string();
            if !text.contains(&told) {
                text.push_str(": ");
                text.push_str(&told);
            }
            next = source.source();
        }
        Cause(text)
    }

    #[cfg(feature = "spanner")]
    pub fn says(&self, part: &str) -> bool {
        self.0.contains(part)
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Cause(text)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Cause {}
