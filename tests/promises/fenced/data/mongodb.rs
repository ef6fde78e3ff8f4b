//! A collection in the database of the locks.

use leasehold::Error;
use leasehold::fence::Fenced;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::sync::{Client, ClientSession, Collection};
use leasehold::mongodb::{driver, run_fenced};

use super::{Change, Data};

pub struct Texts {
    client: Client,
    pub collection: Collection<Document>,
}

impl Texts {
    /// Creates the collection if it is missing. Only the caller may drop it.
    pub fn new(uri: &str, database: &str, collection: &str) -> Texts {
        let client = Client::with_uri_str(uri).unwrap();
        let collection = client.database(database).collection(collection);
        // Otherwise a transaction would have to create the collection.
        let made = doc! { "$set": { "text": "" } };
        collection.update_one(doc! { "_id": "" }, made).upsert(true).run().unwrap();
        Texts { client, collection }
    }

    pub fn session(&self) -> ClientSession {
        self.client.start_session().run().unwrap()
    }

    pub fn set(&self, session: &mut ClientSession, key: &str, text: &str) -> driver::error::Result<()> {
        let update = doc! { "$set": { "text": text } };
        self.collection.update_one(doc! { "_id": key }, update).upsert(true).session(session).run().map(drop)
    }
}

impl Data for Texts {
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error> {
        let Change { key, text, meanwhile } = change;
        let mut begun = 0;
        let mut work = |session: &mut ClientSession| {
            begun += 1;
            self.collection.find_one(doc! { "_id": key }).session(&mut *session).run()?;
            meanwhile();
            self.set(session, key, text)
        };
        let mut session = self.session();
        match held {
            Some(held) => run_fenced(held, &mut session, work)?,
            None => session.start_transaction().and_run(|session| work(session)).unwrap(),
        }
        Ok(begun)
    }

    fn text(&self, key: &str) -> Option<String> {
        let found = self.collection.find_one(doc! { "_id": key }).run().unwrap()?;
        Some(found.get_str("text").unwrap().to_owned())
    }
}
