//! A service that refuses requests which are signed with a wrong time, and hosts whose wall clock is wrong.

use crate::dynamodb::*;

/// The time of the service is this far ahead of this host's wall clock.
const AHEAD: [i64; 2] = [3_600, -3_600];

impl Behind {
    /// A store whose requests go through the proxy.
    fn open(&self) -> Dynamodb {
        let settings = Settings::Given(Box::new(config_at(&self.proxy.url())));
        open(DynamodbOptions::new(&self.table.0, settings), &Clock::system())
    }

    fn refused(&self) -> usize {
        self.proxy.requests().iter().filter(|request| request.sent == 0).count()
    }
}

/// Each new connection is one of a new client of the SDK, which knows nothing of the time that an earlier one learned.
#[test]
fn only_the_first_request_of_a_host_whose_wall_clock_is_wrong_is_refused() {
    needs_server!();
    for ahead in AHEAD {
        let at = Behind::new();
        at.proxy.check_signing_times();
        at.proxy.shift_dates(ahead);
        let store = at.open();
        assert_eq!(at.refused(), 1, "{ahead}");
        // The answers contradict each other, so the next request goes over another connection.
        at.proxy.shift_dates_of_open(60);
        get(&store, "k");
        granted(&store, &mut exclusive("k"));
        assert_eq!(at.refused(), 1, "{ahead}");
    }
}

/// The first answer is by a host of the service whose clock is wrong, and says nothing about this host's.
#[test]
fn a_host_of_the_service_whose_clock_is_wrong_keeps_nobody_from_connecting() {
    needs_server!();
    for ahead in AHEAD {
        let at = Behind::new();
        at.proxy.check_signing_times();
        at.proxy.shift_dates_of_next(ahead);
        granted(&at.open(), &mut exclusive("k"));
        assert!(at.refused() > 0, "{ahead}: its clock was not met");
    }
}
