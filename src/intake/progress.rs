/// How far an intake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes of the artifact that are done in this stage.
    pub done: u64,
    /// Bytes of the artifact, where they are known.
    pub total: Option<u64>,
    /// Bytes received from upstream by this run, for metrics.
    pub received: u64,
}

/// What an intake is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Another run takes in the same artifact; its result will do for this one too.
    #[default]
    Waiting,
    /// What a former attempt left is being read again.
    Rehashing,
    /// Upstream was asked and has not answered yet; a factory may be building the image.
    Opening,
    /// Bytes are coming.
    Fetching,
    /// Every byte is here; the disk is being decoded and inspected.
    Verifying,
    /// The disk is in the spool.
    Done,
}

impl Progress {
    /// The share of the work that lies in fetching, in percent; decoding is the rest.
    const FETCHING: u64 = 80;

    /// The whole work's progress, 0 to 100, where the artifact's size is known.
    pub fn percent(&self) -> Option<u8> {
        let share = |most: u64| {
            let total = self.total.filter(|total| *total > 0)?;
            Some(u64::try_from(u128::from(self.done.min(total)) * u128::from(most) / u128::from(total)).unwrap_or(0))
        };
        let percent = match self.stage {
            Stage::Waiting | Stage::Rehashing | Stage::Opening => 0,
            Stage::Fetching => share(Self::FETCHING)?,
            Stage::Verifying => Self::FETCHING + share(99 - Self::FETCHING)?,
            Stage::Done => 100,
        };
        u8::try_from(percent).ok()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Progress, Stage};

    #[rstest]
    #[case(Stage::Opening, 0, None, Some(0))]
    #[case(Stage::Fetching, 0, Some(200), Some(0))]
    #[case(Stage::Fetching, 100, Some(200), Some(40))]
    #[case(Stage::Fetching, 100, None, None)]
    #[case(Stage::Fetching, 0, Some(0), None)]
    #[case(Stage::Fetching, u64::MAX, Some(u64::MAX), Some(80))]
    #[case(Stage::Verifying, 200, Some(200), Some(99))]
    #[case(Stage::Done, 0, None, Some(100))]
    fn percent_grows_to_a_hundred(#[case] stage: Stage, #[case] done: u64, #[case] total: Option<u64>, #[case] percent: Option<u8>) {
        assert_eq!(Progress { stage, done, total, received: 0 }.percent(), percent);
    }
}
