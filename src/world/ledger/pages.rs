/// Items by number in pages of fixed size, so that growing neither copies nor leaves half of the memory empty, and numbers stay valid.
pub(super) struct Pages<T> {
    pages: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    next: u32,
    len: usize,
}

const PAGE: usize = 1024;

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: Vec::new(), next: 0, len: 0 }
    }
}

impl<T> Pages<T> {
    /// Stores an item and gives its number, which may be one that was free again.
    pub(super) fn insert(&mut self, item: T) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            let id = self.next;
            self.next += 1;
            id
        });
        if id as usize / PAGE == self.pages.len() {
            self.pages.push(std::iter::repeat_with(|| None).take(PAGE).collect());
        }
        if let Some(slot) = self.slot(id) {
            *slot = Some(item);
            self.len += 1;
        }
        id
    }

    /// Takes an item out; its number is free again.
    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let item = self.slot(id)?.take()?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        } else {
            self.free.push(id);
        }
        Some(item)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.pages.get(id as usize / PAGE)?.get(id as usize % PAGE)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slot(id)?.as_mut()
    }

    fn slot(&mut self, id: u32) -> Option<&mut Option<T>> {
        self.pages.get_mut(id as usize / PAGE)?.get_mut(id as usize % PAGE)
    }

    /// How many items are stored.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// One past the highest number ever given, for walks that may be interrupted.
    pub(super) fn end(&self) -> u32 {
        self.next
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.pages.len() * PAGE * size_of::<Option<T>>() + self.pages.capacity() * size_of::<Box<[Option<T>]>>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, Pages};

    #[test]
    fn numbers_are_used_again_and_others_stay() {
        let mut pages = Pages::default();
        let count = u32::try_from(PAGE + 2).expect("small");
        for number in 0..count {
            assert_eq!(pages.insert(number), number);
        }
        assert_eq!(pages.remove(5), Some(5));
        assert_eq!((pages.remove(5), pages.get(5), pages.len()), (None, None, PAGE + 1));
        assert_eq!(pages.insert(99), 5);
        assert_eq!((pages.get(5), pages.get(count - 1), pages.get(count), pages.end()), (Some(&99), Some(&(count - 1)), None, count));
        for number in 0..count {
            pages.remove(number);
        }
        assert_eq!((pages.len(), pages.heap_bytes()), (0, 0), "an empty store holds nothing");
    }
}
